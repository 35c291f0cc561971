# %% [markdown]
# # Parameters from two tables of measurements
#
# A table-tennis ball is thrown twice, and measured in two ways. Wanted: gravity, restitution and
# drag, with their uncertainty, though nobody knows how fast the ball left the hand.
#
#     h' = v,   m v' = -m g - c |v| v,   v+ = -e v- at h = 0

# %%
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import saltus
from saltus.plot import COLOURS, pyplot


def flow(now, p):
    v = now.x["v"]
    return {"h": v, "v": -p["g"] - p["c"] / p["m"] * v * jnp.abs(v)}


def bounced(now, p):
    return now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]})


ball = saltus.HybridSystem(
    flow,
    events=[saltus.Event("bounce", guard=lambda now, p: now.x["h"], reset=bounced)],
    units={"t": "s", "h": "m", "v": "m/s", "g": "m/s^2", "m": "g", "c": "g/m"},
)


def hand(height, v=0.0):
    return saltus.Instant(t=0.0, x={"h": height, "v": v})


# %% [markdown]
# **The data.** A camera writes the height 30 times a second; for some pictures there is no value,
# and the recording ends soon. A second throw is followed by an instrument that writes a height or a
# speed whenever it has one, and a microphone hears the bounces to within 2 ms. Here both are
# simulated, with noise, and written as CSV files; a cell that is empty is missing.

# %%
truth = {"g": 9.81, "e": 0.88, "c": 0.35, "m": 2.7}
speeds = {"camera.start.v": 3.0, "second.start.v": -2.0}
rng = np.random.default_rng(5)


def measured(start, ts):
    """Heights and speeds with noise, and the bounces as they were heard."""
    sol = saltus.solve(ball, start, truth, ts[-1], ts=ts)
    bounces = np.asarray(sol.events.t)
    h = np.asarray(sol.y["h"]) + 0.05 * rng.normal(size=ts.size)
    v = np.asarray(sol.y["v"]) + 0.2 * rng.normal(size=ts.size)
    return h, v, bounces + 0.002 * rng.normal(size=bounces.size)


def write(path, header, *columns):
    cells = [["" if np.isnan(x) else f"{x:.4f}" for x in row] for row in zip(*columns, strict=True)]
    path.write_text("\n".join([header, *map(",".join, cells)]))


folder = Path(tempfile.mkdtemp())
t = np.arange(1, 22) / 30
h, _, _ = measured(hand(1.0, speeds["camera.start.v"]), t)
h[[3, 12, 13, 14]] = np.nan
write(folder / "camera.csv", "t [s],h [m]", t, h)

t = np.sort(rng.uniform(0.05, 1.5, 30))
h, v, heard = measured(hand(1.5, speeds["second.start.v"]), t)
h[0::3], v[1::3] = np.nan, np.nan
write(folder / "second.csv", "t [s],h [m],v [m/s]", t, h, v)

# %% [markdown]
# **The experiments.** Each has its own table and its own start. The camera's is given an end after
# its last picture: the model is to say how the ball goes on. The deviation of the heard times is
# known; those of heights and speeds are left to be estimated from the residuals.

# %%
experiments = [
    saltus.Experiment(folder / "camera.csv", start=hand(1.0), t1=3.5),
    saltus.Experiment(
        folder / "second.csv", start=hand(1.5), events={"bounce": heard}, sd={"bounce": 0.002}
    ),
]
guess = saltus.Scenario(
    ball,
    start=hand(1.0),
    p={"g": 9.0, "e": 0.8, "c": 0.2, "m": 2.0},
    free=["g", "e", "c", "m", "start.v"],
)
fit = saltus.fit(guess, experiments)
print(fit)

# %% [markdown]
# The fit is good, and yet two of its numbers are worth nothing: `m` and `c` enter the equations
# only as c/m, so that they can be changed together. The last line says so. It is found from the
# sensitivities, not from the equations, so it also warns of what is only nearly so.

# %%
assert fit.ok
assert len(fit.weak) == 1 and fit.weak[0].count("by +10 %") == 2
assert set(np.array(fit.names)[~np.isfinite(fit.sd)]) == {"c", "m"}

# %% [markdown]
# More data of this kind do not help; a scale does. The ball is weighed, 2.71 g give or take 0.02 g,
# and that is told to the fit as a prior. The initial speeds are free in every experiment, and named
# after them. (A fit that takes hours is given `checkpoint="ball.npz"`. After Ctrl-C, which returns
# the best point so far, or after a power cut, `resume="ball.npz"` goes on from there.)

# %%
fit = saltus.fit(guess, experiments, priors={"m": (2.71, 0.02)})
print(fit)
exact = {**truth, **speeds}
assert fit.ok and not fit.weak
assert fit.names == ["g", "e", "c", "m", "camera.start.v", "second.start.v"]
for name, value, sd in zip(fit.names, fit.values, fit.sd, strict=True):
    assert abs(value - exact[name]) < 3 * sd
assert 0.04 < fit.noise["h"] < 0.06

# %% [markdown]
# These intervals take the loss for a parabola. `profile` does not: it holds one number at values
# around its estimate and fits the others again. Where the two agree, the parabola was good enough.

# %%
profile = fit.profile("e", points=11)
k = fit.names.index("e")
print(f"{profile}, from the parabola {fit.low[k]:.6g} to {fit.high[k]:.6g}")
assert abs(profile.low - fit.low[k]) < 0.2 * fit.sd[k]
assert abs(profile.high - fit.high[k]) < 0.2 * fit.sd[k]

# %% [markdown]
# `bands` are the intervals of the prediction. Where there are data the band is narrow, and after
# them it widens with every bounce, since the time of a bounce is uncertain as well.

# %%
bands = [fit.bands(0), fit.bands(1)]
ts, low, _, high = bands[0]["h"]
last = fit.experiments[0].outputs["h"].t[-1]
assert np.max((high - low)[ts > last]) > 1.5 * np.max((high - low)[ts < last])

# %%
plt = pyplot()
figure, axes = plt.subplots(2, 2, figsize=(9.4, 5.6), width_ratios=[1.75, 1])
for axis, run, band, text in zip(
    axes[:, 0], fit.experiments, bands, ("First throw: camera", "Second throw"), strict=True
):
    ts, low, middle, high = band["h"]
    seen = run.outputs["h"]
    axis.fill_between(ts, low, high, color=COLOURS[0], alpha=0.25, lw=0, label="95 % band")
    axis.plot(ts, middle, color=COLOURS[0], lw=1.4, label="fit")
    axis.plot(seen.t, seen.observed, ".", color="#2b3137", ms=5, label="measured height")
    axis.set(xlim=(0, 3.5), ylim=(-0.12, 1.6), ylabel="h [m]", title=text)
axes[0, 0].axvspan(last, 3.5, color="#5c6b73", alpha=0.08, lw=0)
axes[0, 0].annotate("predicted", (last + 0.04, 1.43), color="#5c6b73")
axes[1, 0].plot(heard, 0 * heard, "^", color=COLOURS[1], ms=7, label="heard bounce")
axes[1, 0].set(xlabel="t [s]")
axes[1, 0].legend(loc="upper right")

for k, name in enumerate(fit.names):
    off = (np.array([fit.low[k], fit.values[k], fit.high[k]]) / exact[name] - 1) * 100
    axes[0, 1].plot(off[[0, 2]], [k, k], color=COLOURS[0], lw=2.2)
    axes[0, 1].plot(off[1], k, "o", color=COLOURS[0], ms=5)
axes[0, 1].axvline(0.0, color=COLOURS[1], lw=1.1, ls="--")
axes[0, 1].set_yticks(range(len(fit.names)), fit.names)
axes[0, 1].invert_yaxis()
axes[0, 1].set(xlabel="off the truth [%]", title="Estimates, 95 % intervals")

rise = profile.losses - profile.losses.min()
axes[1, 1].plot(profile.values, rise, "o-", color=COLOURS[0], ms=3.5)
axes[1, 1].axhline(profile.threshold - profile.losses.min(), color=COLOURS[3], lw=1.0)
for end in (profile.low, profile.high):
    axes[1, 1].axvline(end, color=COLOURS[3], lw=1.0, ls=":")
axes[1, 1].axvline(truth["e"], color=COLOURS[1], lw=1.1, ls="--")
axes[1, 1].set(xlabel="restitution e", ylabel="loss above its least", title="Profile of e")
figure.savefig("fit_from_data.png")
