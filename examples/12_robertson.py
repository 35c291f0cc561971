# %% [markdown]
# # Robertson's reaction: stiff, in three ways of writing it
#
# Three species and three reactions whose rates differ by nine orders of magnitude:
#
#     y1' = -k1 y1 + k3 y2 y3
#     y2' =  k1 y1 - k3 y2 y3 - k2 y2²
#     y3' =  k2 y2²                        or: 0 = y1 + y2 + y3 - 1
#
# y2 is formed slowly and used up in no time. An explicit method would have to follow that fast
# reaction for ever; `Radau5` does not, and gets to t = 1e11 in a few hundred steps.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus.plot import COLOURS, pyplot


def rates(y1, y2, y3, k):
    slow, fast, back = k["k1"] * y1, k["k2"] * y2**2, k["k3"] * y2 * y3
    return back - slow, slow - back - fast, fast


# %% [markdown]
# **As a DAE**: two differential equations, and the conservation of mass as a constraint. The third
# species is an algebraic state, `z`. In a start it is a guess, from which it is solved.

# %%
dae = saltus.HybridSystem(
    flow=lambda now, k: dict(
        zip(("y1", "y2"), rates(now.x["y1"], now.x["y2"], now.z["y3"], k), strict=False)
    ),
    constraint=lambda now, k: {"mass": now.x["y1"] + now.x["y2"] + now.z["y3"] - 1},
    output=lambda now, k: jnp.stack([now.x["y1"], now.x["y2"], now.z["y3"]]),
)
k = {"k1": 0.04, "k2": 3e7, "k3": 1e4}
method = saltus.Radau5(rtol=1e-9, atol={"y1": 1e-16, "y2": 1e-20})


def concentrations(k, t, method=method):
    start = saltus.Instant(t=0.0, x={"y1": 1.0, "y2": 0.0}, z={"y3": 0.0})
    return saltus.solve(dae, start, k, t, method=method)


sol = concentrations(k, 1e11)
print(sol)
exact = np.array([2.083340149701255e-08, 8.333360770334713e-14, 0.9999999791665050])
assert np.allclose(sol.y, exact, rtol=1e-6, atol=0.0)

# %% [markdown]
# **With a mass matrix**: M y' = f, where the last row of M is zero. `mass_matrix` finds out which
# rows are equations and which entries of y are algebraic, and says so.
#
# **Fully implicit**: 0 = F(y', y, t). The residual reads y' as `now.dx`.

# %%
M = np.diag([1.0, 1.0, 0.0])
print(saltus.mass.Split.of(M))


def with_conservation(now, k):
    y1, y2, y3 = now.x
    return jnp.stack([*rates(y1, y2, y3, k)[:2], y1 + y2 + y3 - 1])


by_matrix = saltus.mass_matrix(M, with_conservation)
implicit = saltus.fully_implicit(lambda now, k: now.dx - jnp.stack(rates(*now.x, k)))

start = saltus.Instant(t=0.0, x=jnp.array([1.0, 0.0, 0.0]))
reference = concentrations(k, 40.0).y
for system in (by_matrix, implicit):
    fine = saltus.Radau5(rtol=1e-9, atol=1e-14)
    y = saltus.solve(system, start, k, 40.0, method=fine).final.x
    print(y)
    assert np.allclose(y, reference, rtol=1e-7)

# %% [markdown]
# **Sensitivities.** Rates that are c times as large make everything happen c times as early, so the
# sum of k dy/dk over the three rates has to be t y'. That checks the derivatives of a stiff solve
# without knowing them:

# %%
t = 4e3
jacobian = jax.jacfwd(lambda k: concentrations(k, t).y)(k)
total = sum(k[name] * jacobian[name] for name in k)
y = concentrations(k, t).y
assert np.allclose(total, t * np.stack(rates(*y, k)), rtol=1e-6)
for name in k:
    print(f"{name} dy/d{name} =", k[name] * np.asarray(jacobian[name]))

# %% [markdown]
# **Events.** When is nine tenths of the first species used up? The time is a result like any other,
# and the same argument says that the sum of k dT/dk is -T. The gradient comes from an adjoint sweep
# through the stiff solve.

# %%
nearly_gone = saltus.Event("nearly gone", guard=lambda now, k: now.x["y1"] - 0.1, terminal=True)
timed = saltus.HybridSystem(dae.flow, dae.constraint, events=[nearly_gone])


def duration(k):
    start = saltus.Instant(t=0.0, x={"y1": 1.0, "y2": 0.0}, z={"y3": 0.0})
    return saltus.solve(timed, start, k, 1e11, method=method).final.t


T, slope = duration(k), jax.grad(duration)(k)
print(f"T = {T:.4f}, k dT/dk =", {name: float(k[name] * slope[name]) for name in k})
assert np.isclose(sum(k[name] * slope[name] for name in k), -T, rtol=1e-6)

# %%
plt = pyplot()
figure, axes = plt.subplots(2, 1, figsize=(7.6, 5.6), sharex=True)
ts = jnp.logspace(-6, 11, 250)
course = sol(ts)
curves = jax.jacfwd(lambda k: concentrations(k, 1e11)(ts))(k)
for j, (name, scale) in enumerate((("y1", 1.0), ("y2", 1e4), ("y3", 1.0))):
    text = name if scale == 1 else f"{name} x {scale:.0e}"
    axes[0].semilogx(ts, scale * course[:, j], color=COLOURS[j], label=text)
for j, name in enumerate(k):
    axes[1].semilogx(
        ts, k[name] * curves[name][:, 0], color=COLOURS[j], label=f"{name} dy1/d{name}"
    )
axes[0].axvline(T, color="#8a94a0", lw=0.9, ls="--")
axes[0].set(ylabel="concentrations", title="Robertson's reaction over 17 decades of time")
axes[1].set(xlabel="t", ylabel="sensitivities", title="What the first species depends on")
axes[0].legend(loc="center left")
axes[1].legend(loc="upper left")
figure.savefig("robertson.png")
