# %% [markdown]
# # A pendulum against a wall, and one that a peg catches
#
# A pendulum in Cartesian coordinates: a point mass (x, y) with velocity (u, w), and a string that
# keeps it at the distance L from the pivot. The pull of the string is not given by a formula. It is
# whatever keeps the length, a multiplier lambda:
#
#     x' = u - x eta,   y' = w - y eta,   u' = -x lambda,   w' = -g - y lambda
#     0 = (x² + y² - L²)/2,   0 = x u + y w
#
# The last two equations do not contain lambda and eta: their *time derivatives* determine them.
# That is index 2. One could do with the very last alone, but then the length would drift. With
# both, and a second multiplier eta that is zero on the exact solution, it does not (Gear, Gupta and
# Leimkuhler).

# %%
from itertools import pairwise

import jax
import numpy as np

import saltus
from saltus import Exit, Mode
from saltus.plot import COLOURS, pyplot

method = saltus.Radau5(rtol=1e-10, atol=1e-10)


def swing(pivot=lambda p: (0.0, 0.0)):
    """The flow around a pivot."""

    def flow(now, p):
        (px, py), x, z = pivot(p), now.x, now.z
        rx, ry = x["x"] - px, x["y"] - py
        return {
            "x": x["u"] - rx * z["eta"],
            "y": x["w"] - ry * z["eta"],
            "u": -rx * z["lambda"],
            "w": -p["g"] - ry * z["lambda"],
        }

    return flow


def string(length, pivot=lambda p: (0.0, 0.0)):
    """The constraint: lambda keeps the velocity tangential, eta keeps the length."""

    def constraint(now, p):
        (px, py), x = pivot(p), now.x
        rx, ry = x["x"] - px, x["y"] - py
        return {
            "lambda": rx * x["u"] + ry * x["w"],
            "eta": 0.5 * (rx**2 + ry**2 - length(p) ** 2),
        }

    return constraint


def hanging(p, angle, speed):
    """A start; z is a guess, from which the multipliers are solved."""
    s, c = np.sin(angle), np.cos(angle)
    x = {"x": p["L"] * s, "y": -p["L"] * c, "u": p["L"] * speed * c, "w": p["L"] * speed * s}
    return {"t": 0.0, "x": x, "z": {"lambda": 0.0, "eta": 0.0}}


# %% [markdown]
# **A wall** at x = xw. The velocity is reversed and loses a part; the position is kept. Both
# constraints hold after the impact if they held before it, and lambda, which depends on the speed,
# jumps: it is solved again after every reset.

# %%
wall = saltus.Event(
    "wall",
    guard=lambda now, p: now.x["x"] - p["xw"],
    direction="rising",
    reset=lambda now, p: now.replace(
        x={**now.x, "u": -p["e"] * now.x["u"], "w": -p["e"] * now.x["w"]}
    ),
)
pendulum = saltus.HybridSystem(
    swing(),
    string(lambda p: p["L"]),
    events=[wall],
    rate=lambda now, p: now.z["lambda"],
    output=lambda now, p: {**now.x, **now.z},
)


def against_the_wall(p):
    start = saltus.Instant(**hanging(p, -0.9, 0.3))
    return saltus.solve(pendulum, start, p, 4.0, method=method)


p = {"L": 1.2, "g": 9.81, "e": 0.85, "xw": 0.4}
hit = against_the_wall(p)
print(hit)
print(hit.events)


def facts(p):
    sol = against_the_wall(p)
    return {
        "x(4)": sol.final.x["x"],
        "lambda(4)": sol.final.z["lambda"],
        "pull": sol.integral,
        "third impact": sol.events.t[2],
    }


reference = {  # value, and its derivatives with respect to L, g, e, xw
    "x(4)": [-0.3013917847, 1.138791264, -0.3632993341, -3.253774466, 4.740062917],
    "lambda(4)": [10.33852245, -2.216272385, -0.8761842722, -3.034387588, 28.13723643],
    "pull": [40.288331394966, -35.466475538047, 4.1397581409525, 16.530032913236, 4.8718582072805],
    "third impact": [3.637167133, 0.7584176074, -0.1825718502, -0.8280330891, 2.202321804],
}  # fmt: skip


def check(found, slopes, names):
    for what, (value, *exact) in reference.items():
        ours = [float(slopes[what][k]) for k in names]
        print(f"{what:>14} {float(found[what]):+.9f}  d/d({', '.join(names)}):", np.round(ours, 7))
        assert np.isclose(found[what], value, rtol=1e-7)
        assert np.allclose(ours, exact, rtol=1e-6, atol=1e-7)


slopes = jax.jacfwd(facts)(p)
check(facts(p), slopes, ["L", "g", "e", "xw"])

# %% [markdown]
# The motion from impact to impact, each piece with its limit from the left at the end. The length
# does not drift:


# %%
def pieces(sol):
    borders = [0.0, *np.asarray(sol.events.t), 4.0]
    ts = np.array([np.linspace(a, b, 150) for a, b in pairwise(borders)])
    inside, end = sol(ts[:, :-1]), sol(ts[:, -1:], side="left")
    return ts, {k: np.concatenate([inside[k], end[k]], axis=1) for k in inside}


ts, path = pieces(hit)
drift = np.abs(np.hypot(path["x"], path["y"]) - p["L"])
print(f"largest change of length: {drift.max():.1e}")
assert drift.max() < 1e-9

# %% [markdown]
# **A peg** below the pivot. When the string touches it, the rest of the string swings around the
# peg, until it comes back. Two modes, with a flow and a constraint each. In an automaton equations
# have the names of the algebraic states; what a mode leaves out would be pinned to zero. Catching
# costs speed, letting go does not.

# %%
ANGLE = 0.15


def peg(p):
    return p["d"] * np.sin(ANGLE), -p["d"] * np.cos(ANGLE)


def beyond(now, p):
    return now.x["x"] * np.cos(ANGLE) + now.x["y"] * np.sin(ANGLE)


def jerk(now, p):
    return now.replace(x={**now.x, "u": p["kappa"] * now.x["u"], "w": p["kappa"] * now.x["w"]})


caught = saltus.automaton(
    {
        "free": Mode(
            swing(),
            string(lambda p: p["L"]),
            exits=[Exit(beyond, to="caught", direction="rising", reset=jerk, name="catch")],
        ),
        "caught": Mode(
            swing(peg),
            string(lambda p: p["L"] - p["d"], peg),
            exits=[Exit(beyond, to="free", direction="falling", name="release")],
        ),
    },
    rate=lambda now, p: now.z["lambda"],
    output=lambda now, p: {**now.x, **now.z},
)


def around_the_peg(p):
    start = saltus.Instant(**hanging(p, -0.8, 0.0), mode="free")
    return saltus.solve(caught, start, p, 4.0, method=method)


q = {"L": 1.2, "g": 9.81, "d": 0.5, "kappa": 0.9}
held = around_the_peg(q)
print(held.events)


def facts_of_the_peg(p):
    sol = around_the_peg(p)
    return {
        "x(4)": sol.final.x["x"],
        "lambda(4)": sol.final.z["lambda"],
        "pull": sol.integral,
        "last release": sol.events.of("release").t[1],
    }


reference = {  # value, and its derivatives with respect to L, g, d, kappa
    "x(4)": [-0.6676666315, 0.944068674, -0.1510619818, -0.6372619982, -0.9788763451],
    "lambda(4)": [7.34499903, 14.41298154, -1.318562837, -8.720952837, 0.5286788982],
    "pull": [47.931901781112, -45.552818666093, 3.9404637054428, 32.014866897835, 20.10742423471],
    "last release": [3.507268334, 1.819716081, -0.1787598539, -0.8600502599, 0.5420900479],
}  # fmt: skip
check(facts_of_the_peg(q), jax.jacfwd(facts_of_the_peg)(q), ["L", "g", "d", "kappa"])

# %%
plt = pyplot()
figure, axes = plt.subplots(2, 2, figsize=(9.2, 6.8), width_ratios=[1, 1.5])
for row, (sol, title) in enumerate(((hit, "A wall"), (held, "A peg"))):
    ts, path = pieces(sol)
    events, axis = sol.events, axes[row, 0]
    axis.plot(path["x"].ravel(), path["y"].ravel(), color=COLOURS[0], lw=1.2)
    axis.plot(0, 0, "o", color="#2b3137", ms=5)
    axis.plot(events.after.x["x"], events.after.x["y"], "o", color=COLOURS[1], ms=4)
    axis.set(aspect="equal", xlabel="x", ylabel="y", title=title)
    for t, pull in zip(ts, path["lambda"], strict=True):
        axes[row, 1].plot(t, pull, color=COLOURS[2])
    for t in events.t:
        axes[row, 1].axvline(t, color="#8a94a0", lw=0.8, alpha=0.6, zorder=0.9)
    axes[row, 1].set(ylabel="multiplier lambda", title="Pull of the string per length", xlabel="t")
    axes[row, 1].margins(x=0.01)
axes[0, 0].axvline(p["xw"], color=COLOURS[1], lw=1.4, label="wall")
axes[0, 0].legend(loc="upper left")
axes[1, 0].plot(*peg(q), "s", color=COLOURS[3], ms=6, label="peg")
axes[1, 0].legend(loc="upper left")
figure.savefig("pendulum.png")
