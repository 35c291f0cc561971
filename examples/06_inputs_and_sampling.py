# %% [markdown]
# # Inputs, sampling, and things that happen on time
#
# A tank with an outlet. Somebody else's inflow comes in steps, the level should follow a ramp, a
# controller looks at the level every so often and sets a pump, and once a bucket is emptied into
# the tank.
#
#     area h' = pump + inflow(t) - outlet sqrt(h)
#
# None of these needs a guard: their times are known ahead. They are hit exactly, and they may be
# parameters.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import saltus
from saltus.plot import COLOURS, pyplot


def flow(now, p):
    out = 0.6 * jnp.sqrt(now.x["h"])
    return {"h": now.d["pump"] + now.u["inflow"] - out}


# %% [markdown]
# **Inputs** are signals made of parameters: `Steps` are piecewise constant, `Ramps` piecewise
# linear. Model functions read their current values as `now.u`. Steps of the method end at the
# breakpoints, so a discontinuous input costs no accuracy.


# %%
def inputs(p):
    return {
        "inflow": saltus.Steps(p["times"], p["flows"]),
        "wanted": saltus.Ramps(jnp.array([0.0, 4.0, 9.0]), jnp.array([1.0, 1.0, 2.0])),
    }


# %% [markdown]
# **Sampling.** `every(period)` ticks; the reset reads the level and writes the pump's rate into the
# discrete state `now.d`, which stays as it is until the next tick. The period is a parameter too.
#
# **A time of its own.** `next_time` is evaluated at the start and after every jump. A time that is
# not ahead means that nothing is pending, so the bucket comes once.


# %%
def control(now, p):
    error = now.u["wanted"] - now.x["h"]
    total = now.d["total"] + p["period"] * error
    return now.replace(d={"pump": p["kp"] * error + p["ki"] * total, "total": total})


sample = saltus.TimeEvent("sample", saltus.every(lambda now, p: p["period"]), reset=control)
bucket = saltus.TimeEvent(
    "bucket",
    next_time=lambda now, p: p["t_bucket"],
    reset=lambda now, p: now.replace(x={"h": now.x["h"] + 0.3}),
)
tank = saltus.HybridSystem(
    flow,
    events=[sample, bucket],
    inputs=inputs,
    rate=lambda now, p: (now.x["h"] - now.u["wanted"]) ** 2,
    output=lambda now, p: {"h": now.x["h"], "pump": now.d["pump"], "wanted": now.u["wanted"]},
    units={"t": "min", "h": "m", "pump": "m^3/min"},
)
p = {
    "kp": 0.5, "ki": 0.3, "period": 0.35, "t_bucket": 10.6,
    "times": jnp.array([0.0, 2.0, 6.0]), "flows": jnp.array([0.3, 0.8, 0.1]),
}  # fmt: skip


def solve(p):
    start = saltus.Instant(t=0.0, x={"h": 1.0}, d={"pump": 0.3, "total": 0.0})
    return saltus.solve(tank, start, p, 15.0)


sol = solve(p)
print(sol)

# %% [markdown]
# How does the squared error depend on all of this? One gradient answers, also for the times: when
# the inflow changes, when the bucket comes, how often we look. Central differences agree.


# %%
def cost(p):
    return solve(p).integral


gradient = jax.grad(cost)(p)
flat, rebuild = ravel_pytree(p)
slope, _ = ravel_pytree(gradient)
names = ["flows[0]", "flows[1]", "flows[2]", "ki", "kp", "period", "t_bucket",
         "times[0]", "times[1]", "times[2]"]  # fmt: skip
for k, name in enumerate(names):
    if name == "times[0]":
        continue  # the first piece also holds before its breakpoint
    h = jnp.zeros_like(flat).at[k].set(1e-5)
    difference = float(cost(rebuild(flat + h)) - cost(rebuild(flat - h))) / 2e-5
    print(f"d cost / d {name:<9} {slope[k]:+.7f}   by differences {difference:+.7f}")
    assert abs(slope[k] - difference) < 1e-5

# %% [markdown]
# Tune the gains of the controller by a quasi-Newton method that is given the exact gradient.
#
# (The period is left alone. As it grows, ticks pass other events, and the cost as a function of the
# period has a kink or a jump wherever two of them trade places. At such a point the gradient is
# that of the order in which things happened: one-sided.)


# %%
@jax.jit
@jax.value_and_grad
def objective(logs):
    kp, ki = jnp.exp(logs)
    return cost({**p, "kp": kp, "ki": ki})


first = np.log([p["kp"], p["ki"]])
best = minimize(objective, first, jac=True, method="BFGS", options={"gtol": 1e-6})
kp, ki = np.exp(best.x)
tuned = {**p, "kp": kp, "ki": ki}
print(f"kp = {kp:.3f}, ki = {ki:.3f}: cost {cost(p):.4f} -> {cost(tuned):.4f}")
assert best.success
assert cost(tuned) < 0.5 * cost(p)

# %%
plt = pyplot()
figure, axes = plt.subplots(2, 1, figsize=(7.6, 5.0), sharex=True)
for q, colour, text in ((p, COLOURS[3], "first try"), (tuned, COLOURS[0], "tuned")):
    one = solve(q)
    t = np.unique(np.concatenate([np.linspace(0, 15, 800), np.asarray(one.events.t)]))
    axes[0].plot(t, one(t)["h"], color=colour, label=text)
    axes[1].step(t, one(t)["pump"], where="post", color=colour, lw=1.2)
axes[0].plot(t, one(t)["wanted"], color="#2b3137", lw=1.0, ls="--", label="wanted")
axes[0].set(ylabel="level h [m]", ylim=(0.4, 2.4))
axes[0].set_title("A tank, its controller, and what disturbs them")
axes[0].legend(loc="upper left")
for x, text in ((2.0, "inflow up"), (6.0, "inflow down"), (10.6, "bucket")):
    for axis in axes:
        axis.axvline(x, color="#8a94a0", lw=0.9, zorder=0.9)
    axes[0].annotate(text, (x + 0.1, 0.03), xycoords=("data", "axes fraction"), fontsize=9)
axes[1].set(ylabel="pump [m^3/min]", xlabel="t [min]")
figure.savefig("inputs_and_sampling.png")
