# %% [markdown]
# # A switching equation, forwards and backwards
#
# The first example of Serban and Recuero (2019):
#
#     x' = 4 - x     while x^3 - 5 x^2 + 7 x <= p    (mode A)
#     x' = 10 - 2x   otherwise                       (mode B)
#
# from x(0) = 0 to t = 5 with p = 2.9. The state is continuous, but its sensitivity s = dx/dp and
# its adjoint jump at every switch. They are the subject here; `G`, the integral of x, is the
# quantity of interest.

# %%
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus import Exit, Mode
from saltus.plot import COLOURS, pyplot


def guard(now, p):
    return now.x**3 - 5 * now.x**2 + 7 * now.x - p


system = saltus.automaton(
    {
        "A": Mode(lambda now, p: 4 - now.x, exits=[Exit(guard, to="B", direction="rising")]),
        "B": Mode(lambda now, p: 10 - 2 * now.x, exits=[Exit(guard, to="A", direction="falling")]),
    },
    rate=lambda now, p: now.x,
)
method = saltus.Tsit5(rtol=1e-11, atol=1e-11)


def solve(p, start):
    return saltus.solve(system, start, p, 5.0, method=method)


p = 2.9
start = saltus.Instant(t=0.0, x=0.0, mode="A")
sol = solve(p, start)
print(sol.events)

# %% [markdown]
# A state may be a single number instead of a dictionary, and so may the parameters. Modes are
# entered where their exits say; `sol.events` logs the switches A -> B, B -> A, A -> B.
#
# The gradient, by the adjoint sweep (`jax.grad`) and by the tangent sweep (`jax.jvp`):


# %%
def G(p):
    return solve(p, start).integral


backward = jax.grad(G)(p)
value, forward = jax.jvp(G, (p,), (1.0,))
print(f"G = {value:.11f}   dG/dp = {backward:.11f} (adjoint) = {forward:.11f} (tangent)")
assert abs(value - 20.02907465336) < 1e-9
assert abs(backward + 2.3119531074439) < 1e-9
assert abs(backward - forward) < 1e-12

# %% [markdown]
# **The sensitivity over time.** The derivative of `sol(t)` at a fixed time t. At a switch there are
# two: `side="left"` looks at the trajectory before it, the default at the one after it.


# %%
def s(t, side):
    return jax.jvp(lambda p: solve(p, start)(t, side=side), (p,), (1.0,))[1]


switches = np.asarray(sol.events.t)
limits = np.stack([s(switches, "left"), s(switches, "right")], axis=1)
print("s before and after the switches:\n", limits)
published = [
    [0.0, -1.6456550058639949],
    [-1.4695337100952089, -1.3480705461553922],
    [-0.5006435514540749, -2.7545050376640266],
]
assert np.allclose(limits, published, atol=1e-8)

# %% [markdown]
# **The adjoint over time.** How much does the rest of the integral depend on the state at time t?
# That is a derivative of a solve which *starts* at t, in the mode of that moment. We start it from
# many points of the trajectory at once, with `vmap`. The paper's adjoint has the opposite sign.


# %%
def to_go(x, t, mode):
    return solve(p, saltus.Instant(t=t, x=x, mode=mode)).integral


borders = [0.0, *switches, 5.0]
modes = [0, 1, 0, 1]
near = 1e-9  # the adjoint's limits are taken this close to a switch
ts = np.array([np.linspace(a, b, 80) for a, b in pairwise(borders)])
inside = np.array([np.linspace(a + near, b - near, 80) for a, b in pairwise(borders)])
adjoint = jax.vmap(jax.grad(to_go))
flat = adjoint(sol(inside.reshape(-1)), inside.reshape(-1), jnp.repeat(jnp.array(modes), 80))
adjoint_pieces = -np.asarray(flat).reshape(inside.shape)

jumps = [[adjoint_pieces[k + 1, 0], adjoint_pieces[k, -1]] for k in (2, 1, 0)]
print("adjoint after and before the switches, last switch first:\n", np.array(jumps))
published = [
    [-0.499714266642075, -1.973859119962181],
    [-1.361669713669128, -0.499846136390178],
    [-0.499862603181965, -1.310914693100463],
]
assert np.allclose(jumps, published, atol=1e-7)
assert abs(adjoint_pieces[0, 0] + 1.249710601554319) < 1e-7

# %% [markdown]
# The picture shows both. The sensitivity is carried forward and jumps by what the switch adds; the
# adjoint comes from the right, and jumps too.

# %%
plt = pyplot()
figure, axes = plt.subplots(3, 1, figsize=(7.2, 6.6), sharex=True)
sensitivity = np.concatenate([s(ts[:, :-1], "right"), s(ts[:, -1:], "left")], axis=1)
for t, x, ds, lam in zip(ts, sol(ts), sensitivity, adjoint_pieces, strict=True):
    axes[0].plot(t, x, color=COLOURS[0])
    axes[1].plot(t, ds, color=COLOURS[1])
    axes[2].plot(t, lam, color=COLOURS[2])
for axis, pairs, colour in ((axes[1], limits, COLOURS[1]), (axes[2], jumps[::-1], COLOURS[2])):
    first, second = np.array(pairs).T if axis is axes[1] else np.array(pairs).T[::-1]
    axis.vlines(switches, first, second, color=colour, lw=1.0, ls=":")
    axis.plot(switches, first, "o", mfc="white", mec=colour, ms=4.5)
    axis.plot(switches, second, "o", color=colour, ms=4.5)
for axis in axes:
    for t in switches:
        axis.axvline(t, color="#8a94a0", lw=0.8, alpha=0.6, zorder=0.9)
    axis.margins(x=0.01)
axes[0].set(ylabel="x", title="State")
axes[1].set(ylabel="s = dx/dp", title="Sensitivity, open circles: limits from the left")
axes[2].set(ylabel="λ", xlabel="t", title="Adjoint of the integral of x")
figure.savefig("simple_hybrid_ode.png")
