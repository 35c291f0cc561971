# %% [markdown]
# # A hysteretic oscillator: a system with memory
#
# The second example of Serban and Recuero (2019). A mass shakes the end of a steel bar:
#
#     u' = v,   m v' = f(t) - A s,   0 = sigma(u, u*, s*, p) - s
#
# The stress s is an algebraic state, and its law has a memory: it depends on the displacement u*
# and the stress s* at the last reversal of the motion, and on the direction xi of the motion since
# (the exponential model of Vaiana et al.). Reversals are events: v crosses zero.

# %%
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus.plot import COLOURS, pyplot


def law(now, p):
    u, u_last, s_last, xi = now.x["u"], now.d["u*"], now.d["s*"], now.d["xi"]
    drop = p["ka"] - p["kb"]
    end = 1e-20 / drop
    plateau = xi * drop * (1 + end) / (2 * p["alpha"])

    def backbone(u):
        return 2 * jnp.sinh(p["beta"] * u) - 2 * p["beta"] * u + p["kb"] * u + plateau

    stress = backbone(u) - jnp.exp(-p["alpha"] * xi * (u - u_last)) * (backbone(u_last) - s_last)
    return {"s": stress - now.z["s"]}


# %% [markdown]
# The `constraint` of a system returns residuals, as many as there are algebraic states. Memory is
# what a reset writes into the discrete state `d`: `remember` keeps entries of x and z under their
# names with a star, and calls another reset first if there is one. Here that turns the direction
# around. Floats in `d` are differentiated like everything else; the integer `xi` is not.

# %%
turn = saltus.Event(
    "reversal",
    guard=lambda now, p: now.d["xi"] * now.x["v"],
    reset=saltus.remember(
        lambda now, p: now.replace(d={**now.d, "xi": -now.d["xi"]}), x="u", z="s"
    ),
)
bar = saltus.HybridSystem(
    flow=lambda now, p: {
        "u": now.x["v"],
        "v": 0.5 * now.t * jnp.sin(2 * jnp.pi * now.t) - now.z["s"],
    },
    constraint=law,
    events=[turn],
    rate=lambda now, p: now.x["u"] ** 2,
    output=lambda now, p: {**now.x, **now.z},
)
method = saltus.Tsit5(rtol=1e-10, atol=1e-12)
rest = saltus.Instant(
    t=0.0, x={"u": 0.0, "v": 0.0}, z={"s": 0.0}, d={"u*": 0.0, "s*": 0.0, "xi": 1}
)


def solve(p):
    return saltus.solve(bar, rest, p, 10.0, method=method)


p = {"ka": 32 * np.pi**2, "kb": np.pi**2, "alpha": 205.0, "beta": 0.0}
sol = solve(p)
print(sol)
reversals = np.asarray(sol.events.t)
assert len(reversals) == 19
assert abs(reversals[0] - 0.42151266743751) < 1e-9
assert abs(reversals[-1] - 9.7128048061518) < 1e-9
assert abs(sol.final.z["s"] + 1.1218162466789) < 1e-8

# %% [markdown]
# For a system with algebraic states `solve` takes `Radau5` unless told otherwise. This one is not
# stiff, and so an explicit method is faster; it solves for the stress inside the flow.
#
# The measure of deformation G is the integral of u². Its gradient in the paper is good to three
# digits, by finite differences, forward and adjoint sensitivities. Here are ten, from one adjoint
# sweep through 19 reversals and all that was remembered at them:


# %%
def G(p):
    return solve(p).integral


gradient = jax.grad(G)(p)
published = {"ka": -1.337e-5, "kb": 3.266e-3, "alpha": -1.518e-6, "beta": 0.0}
exact = {"ka": -1.3366438839571e-5, "kb": 3.2667901576461e-3, "alpha": -1.530224960044e-6}
print(f"G = {G(p):.12f}")
for name, value in gradient.items():
    print(f"dG/d{name:<6} {value:+.10e}   in the paper {published[name]:+.3e}")
assert abs(G(p) - 0.049939788606383) < 1e-11
for name, value in exact.items():
    assert abs(gradient[name] / value - 1) < 1e-6
assert abs(gradient["beta"]) < 1e-12

# %% [markdown]
# **Sensitivities over time** are derivatives of `sol(t)`. They are continuous here, because a
# reversal changes the law of the stress but not the stress.

# %%
early = jnp.linspace(0.0, 4.0, 600)
slopes = jax.jacfwd(lambda p: solve(p)(early))(p)

# %% [markdown]
# **The adjoint over time**: how much does the rest of G depend on the displacement at time t, with
# the memory of that moment held fixed? `costates` has it at every step, on its way back from the
# end. At a reversal it jumps, because the displacement there is also remembered.

# %%
adjoint = saltus.costates(lambda sol: sol.integral, sol)
pieces = np.split(np.arange(len(adjoint.t)), np.flatnonzero(adjoint.jump) + 1)
print("d(rest of G)/du before and after each reversal:")
for before, after in pairwise(pieces[: len(reversals) + 1]):
    print(f"  t = {adjoint.t[after[0]]:.4f}  {adjoint.x['u'][before[-1]]:+.6f}", end=" -> ")
    print(f"{adjoint.x['u'][after[0]]:+.6f}")

# %%
plt = pyplot()
figure, axes = plt.subplots(2, 2, figsize=(9.6, 6.4))
fine = np.linspace(0.0, 10.0, 2400)
course = sol(fine)
after = sol.events.after
axes[0, 0].plot(fine, course["u"], color=COLOURS[0], label="u")
axes[0, 0].plot(fine, course["v"] / 10, color=COLOURS[1], label="v / 10")
axes[0, 0].plot(fine, course["s"] / 20, color=COLOURS[2], lw=1.1, label="s / 20")
axes[0, 0].set(xlabel="t", title="States")
axes[0, 0].legend(loc="upper left", ncols=3)
axes[0, 1].plot(course["u"], course["s"], color=COLOURS[0], lw=1.1)
axes[0, 1].plot(after.x["u"], after.z["s"], "o", color=COLOURS[1], ms=3.5, label="reversals")
axes[0, 1].set(xlabel="displacement u", ylabel="stress s", title="Hysteresis loops")
axes[0, 1].legend()
for colour, name in zip(COLOURS, ("ka", "kb", "alpha"), strict=False):
    axes[1, 0].plot(early, p[name] * slopes["u"][name], color=colour, label=f"{name} du/d{name}")
axes[1, 0].set(xlabel="t", title="Sensitivities of the displacement")
axes[1, 0].legend(loc="upper left")
shown = [k[(adjoint.t[k] > 6) & (adjoint.t[k] < 8)] for k in pieces]
shown = [k for k in shown if len(k)]
for k in shown:
    axes[1, 1].plot(adjoint.t[k], adjoint.x["u"][k], color=COLOURS[4])
for a, b in pairwise(shown):
    ends = [a[-1], b[0]]
    axes[1, 1].plot(adjoint.t[ends], adjoint.x["u"][ends], "o:", color=COLOURS[4], ms=3.5, lw=1.0)
axes[1, 1].set(xlabel="t", title="Adjoint of G with respect to u, with its jumps")
figure.savefig("hysteretic_oscillator.png")
