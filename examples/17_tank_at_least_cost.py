# %% [markdown]
# # Hot water at least cost
#
# A thermostat keeps the water of a tank within 2 K of a set-point. Electricity is cheap at night,
# and hot water is drawn in the morning and in the evening. Which set-point, hour by hour, costs
# least? The set-point appears in no differential equation; it only says when the heater switches.
#
#     T' = 24 on - 0.1 (T - 15) - 10 drawn        T in degrees Celsius, t in hours

# %%
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import saltus
from saltus import Exit, Mode
from saltus.plot import COLOURS, pyplot

HEAT, LOSS, ROOM, DRAWN = 24.0, 0.1, 15.0, 10.0  # K/h, 1/h, deg C, K/h
POWER = 2.4  # kW, so that 1 kWh heats by 10 K
knots = jnp.array([0.0, 4.0, 6.0, 8.0, 12.0, 17.0, 19.0, 21.0, 22.0, 24.0])
price = saltus.Steps(jnp.array([0.0, 6.0, 22.0]), jnp.array([0.1, 0.3, 0.1]))  # per kWh
morning = saltus.Steps(jnp.array([0.0, 6.0, 8.0]), jnp.array([0.0, 1.0, 0.0]))
evening = saltus.Steps(jnp.array([0.0, 19.0, 21.0]), jnp.array([0.0, 1.0, 0.0]))


def water(on):
    def flow(now, p):
        drawn = DRAWN * (now.u["morning"] + now.u["evening"])
        return {"T": HEAT * on - LOSS * (now.x["T"] - ROOM) - drawn}

    return flow


def above(now):
    return now.x["T"] - now.u["set"]


cold = Exit(lambda now, p: above(now) + 2.0, to="on", name="on")
warm = Exit(lambda now, p: above(now) - 2.0, to="off", name="off", direction="rising")
tank = saltus.automaton(
    {"off": Mode(water(0.0), exits=[cold]), "on": Mode(water(1.0), exits=[warm])},
    inputs=lambda p: {
        "set": saltus.Ramps(knots, p["set"]),
        "price": price,
        "morning": morning,
        "evening": evening,
    },
    rate=lambda now, p: {
        "cost": POWER * now.u["price"] * (now.mode == 1),
        "morning": now.u["morning"] * now.x["T"] / 2.0,
        "evening": now.u["evening"] * now.x["T"] / 2.0,
    },
    units={"t": "h", "T": "deg C"},
)

# %% [markdown]
# The set-point is a polygon with ten corners. Cost and comfort are integrals along the day: what
# the heater uses times the price, and the mean temperature of the water while it is drawn, which is
# to be 50 degrees at least. So is the temperature at midnight, or the next day would pay for this
# one.


# %%
def day(p):
    start = saltus.Instant(t=0.0, x={"T": 50.0}, mode="off")
    sol = saltus.solve(tank, start, p, 24.0, max_steps=2000, max_events=256, throw=False)
    q = sol.integral
    comfort = {"morning": q["morning"], "evening": q["evening"], "midnight": sol.final.x["T"]}
    return q["cost"], {**comfort, "sol": sol}


guess = {"set": jnp.full(len(knots), 52.0)}
before, facts = day(guess)
print(f"52 degrees all day: cost {before:.3f}, {len(facts['sol'].events)} switches")
assert abs(before - 3.2731) < 1e-3

# %%
best = saltus.minimise(
    day,
    guess,
    bounds={"set": (20.0, 65.0)},
    subject_to={name: (50.0, None) for name in ("morning", "evening", "midnight")},
    optimiser="slsqp",
    max_iterations=500,
)
sol = best.extras["sol"]
print(best)
print(f"{len(sol.events)} switches")
assert best.violation < 1e-5
assert best.loss < 2.05

# %% [markdown]
# The result is called `stalled`, not `converged`, and that is meant. As a function of the set-point
# the cost is smooth only as long as the heater switches equally often in the same order. Where a
# switch comes or goes, the cost has a kink or a jump, and good set-points lie just there: one
# switch less is one heating less. No gradient vanishes at such a point. `minimise` goes on from the
# best point in boxes that shrink until nothing better is found in them, and says so. What it
# returns is feasible and good, but nothing proves that it is the least.
#
# So we need another measure. Forget the thermostat and let the heater follow any course of power
# between zero and full. The temperature is then linear in that course, as are cost and comfort, and
# a linear programme finds the least cost that any controller could reach.

# %%
minutes = 24 * 60
t = np.arange(minutes + 1) / 60
middle = t[:-1] + 0.5 / 60
prices = np.where((middle < 6) | (middle > 22), 0.1, 0.3)
drawn = np.where(((middle > 6) & (middle < 8)) | ((middle > 19) & (middle < 21)), DRAWN, 0.0)
decay = np.exp(-LOSS / 60)
since = np.subtract.outer(np.arange(minutes + 1), np.arange(1, minutes + 1))
response = np.where(since >= 0, decay ** np.maximum(since, 0), 0.0) * (1 - decay) / LOSS
unheated = ROOM + (50.0 - ROOM) * decay ** np.arange(minutes + 1) - response @ drawn


def mean(a, b):
    """Weights of the mean over the hours from a to b, by the trapezoidal rule."""
    inside = (t > a - 1e-9) & (t < b + 1e-9)
    ends = np.isclose(t, a) | np.isclose(t, b)
    return (inside - 0.5 * ends) / (60 * (b - a))


wanted = np.stack([mean(6, 8), mean(19, 21), np.eye(minutes + 1)[-1]])
ideal = scipy.optimize.linprog(
    POWER * prices / 60,
    A_ub=-wanted @ response * HEAT,
    b_ub=wanted @ unheated - 50.0,
    bounds=(0.0, 1.0),
)
print(f"cost {before:.3f} before, {best.loss:.3f} after, {ideal.fun:.3f} by any controller")
assert ideal.success
assert 0.999 * ideal.fun < best.loss < 1.1 * ideal.fun

# %% [markdown]
# The tuned thermostat heats as late as it can: before the tariff rises, before the evening draw,
# and before midnight. Heat that is not in the tank is not lost.


# %%
def power(sol):
    """Whether the heater is on, minute by minute."""
    log = sol.events
    on, off = (np.asarray(log.of(name).t)[:, None] for name in ("on", "off"))
    return np.sum(on <= middle, axis=0) - np.sum(off <= middle, axis=0)


plt = pyplot()
figure, axes = plt.subplots(2, 1, figsize=(8.2, 6.0), sharex=True, height_ratios=[1.5, 1])
for a, b in ((6, 8), (19, 21)):
    axes[0].axvspan(a, b, color=COLOURS[7], alpha=0.16, lw=0)
    axes[0].annotate("drawn", ((a + b) / 2, 67.5), ha="center", color=COLOURS[7])
old = facts["sol"]
axes[0].plot(t, old(t)["T"], color=COLOURS[3], lw=1.0, label="52 degrees all day")
axes[0].plot(knots, best.p["set"], color=COLOURS[5], lw=1.0, ls="--", label="tuned set-point")
axes[0].plot(t, sol(t)["T"], color=COLOURS[0], label="tuned")
linear = unheated + response @ ideal.x * HEAT
axes[0].plot(t, linear, color=COLOURS[1], lw=1.1, ls=":", label="any controller")
axes[0].set(ylim=(15, 72), ylabel="T [deg C]", title="Water in the tank")
axes[0].legend(loc="lower left", ncols=2)

axes[1].axvspan(6, 22, color="#5c6b73", alpha=0.1, lw=0)
axes[1].annotate("dear electricity", (14, 3.0), ha="center", color="#5c6b73")
for share, cost, colour, style in (
    (power(old), before, COLOURS[3], "-"),
    (power(sol), best.loss, COLOURS[0], "-"),
    (ideal.x, ideal.fun, COLOURS[1], ":"),
):
    paid = np.cumsum(POWER * prices * share) / 60
    axes[1].plot(t[1:], paid, color=colour, ls=style, lw=1.4)
    place = {"va": "top" if style == ":" else "bottom", "annotation_clip": False}
    axes[1].annotate(f"{cost:.2f}", (24.15, paid[-1]), color=colour, **place)
axes[1].set(xlim=(0, 24), ylim=(0, 3.5), xlabel="t [h]", ylabel="cost so far")
axes[1].set_xticks(range(0, 25, 3))
figure.savefig("tank_at_least_cost.png")
