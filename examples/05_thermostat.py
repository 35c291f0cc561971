# %% [markdown]
# # A thermostat: parameters that only guards know
#
# A heater goes on when the room is colder than `low` and off when it is warmer than `high`. The
# two thresholds appear in no differential equation, only in the guards. Everything still depends on
# them, through the times of the switches alone.
#
#     T' = -a T   (off),   T' = -a (T - hot)   (on)      T: degrees above the temperature outside

# %%
import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus import Exit, Mode
from saltus.plot import COLOURS

cold = Exit(lambda now, p: now.x["T"] - p["low"], to="on", name="too cold")
warm = Exit(lambda now, p: now.x["T"] - p["high"], to="off", direction="rising", name="too warm")
room = saltus.automaton(
    {
        "off": Mode(lambda now, p: {"T": -p["a"] * now.x["T"]}, exits=[cold]),
        "on": Mode(lambda now, p: {"T": -p["a"] * (now.x["T"] - p["hot"])}, exits=[warm]),
    },
    rate=lambda now, p: {"heating": 1.0 * (now.mode == 1), "degrees": now.x["T"]},
    units={"t": "h", "T": "K", "heating": "h"},
)
p = {"a": 0.4, "hot": 30.0, "high": 22.0, "low": 18.0}


def solve(p, end=24.0):
    start = saltus.Instant(t=0.0, x={"T": p["high"]}, mode="off")
    return saltus.solve(room, start, p, end)


sol = solve(p)
print(sol)

# %% [markdown]
# The running costs of `rate` are integrated along: hours of heating, and degree hours. Inside a
# model function the mode is an integer, in the order in which the modes were declared.
#
# The time of the last switch has a closed form: each cooling takes ln(high / low) / a, each heating
# ln((hot - low) / (hot - high)) / a.


# %%
def last_switch(p):
    return solve(p).events.t[-1]


count = int(sol.events.count)


def formula(p):
    cooling = jnp.log(p["high"] / p["low"]) / p["a"]
    heating = jnp.log((p["hot"] - p["low"]) / (p["hot"] - p["high"])) / p["a"]
    return (count + 1) // 2 * cooling + count // 2 * heating


found, exact = jax.grad(last_switch)(p), jax.grad(formula)(p)
for name in p:
    print(f"d/d{name:<5} {found[name]:+.8f}   closed form {exact[name]:+.8f}")
    assert abs(found[name] - exact[name]) < 1e-6 * abs(exact[name])

# %% [markdown]
# Now use it. We want 20 degrees on average and a switch every 45 minutes, on average over ten whole
# cycles: two equations for two thresholds, and Newton's method with the exact Jacobian.


# %%
def wishes(thresholds):
    start = saltus.Instant(t=0.0, x={"T": thresholds[1]}, mode="off")
    q = {**p, "low": thresholds[0], "high": thresholds[1]}
    sol = saltus.solve(room, start, q, 40.0, ts=None)
    cycles = sol.events.of("too warm").t[9]
    whole = saltus.solve(room, start, q, cycles)
    return jnp.stack([whole.integral["degrees"] / cycles - 20.0, cycles / 20 - 0.75])


thresholds = jnp.array([18.0, 22.0])
for _ in range(5):
    residual = wishes(thresholds)
    low, high, off = *thresholds, jnp.abs(residual).max()
    print(f"low = {low:.6f}, high = {high:.6f}, off by {off:.1e}")
    thresholds = thresholds - jnp.linalg.solve(jax.jacfwd(wishes)(thresholds), residual)
assert jnp.abs(wishes(thresholds)).max() < 1e-9

# %% [markdown]
# The end of the second solve *is* an event time of the first one, and is differentiated as such.
#
# `sol.plot()` knows modes, events and units.

# %%
tuned = solve({**p, "low": thresholds[0], "high": thresholds[1]}, 8.0)
figure = tuned.plot("T")
axis = figure.axes[0]
for name, value in zip(("low", "high"), np.asarray(thresholds), strict=True):
    axis.axhline(value, color=COLOURS[5], lw=1.0, ls="--")
    axis.annotate(
        f"{name} = {value:.2f} K", (8.12, value), va="center", fontsize=9, annotation_clip=False
    )
axis.set_title("Tuned to 20 K and a switch every 45 minutes", pad=18, loc="left")
figure.savefig("thermostat.png")
