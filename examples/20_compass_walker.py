# %% [markdown]
# # A walker without a motor
#
# Two straight legs and a hip walk down a slope, driven by their weight alone: the compass gait of
# Goswami, Thuilot and Espiau (1998). While one leg stands it is an inverted pendulum, and the other
# one swings. When that one lands ahead it takes hold without a bounce, the old one lets go, and
# they exchange their parts. Every landing costs energy, and the slope pays for it. There is a gait
# in which both balance. What is it like, is it stable, and how does its speed depend on the design?
#
# M is the mass at the hip, m that on each leg, a its distance from the foot and b from the hip. The
# angles are those of the legs to the normal of the slope, positive where the hip is behind.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq, fsolve

import saltus
from saltus.multibody import Mechanism
from saltus.plot import COLOURS, pyplot

GRAVITY = 9.8


def along(angle):
    """The direction of a leg, from its foot to the hip."""
    return jnp.stack([-jnp.sin(angle), jnp.cos(angle)])


def places(q, p):
    """Where everything is, along the slope and away from it; `foot` is the one that stands."""
    whole = p["a"] + p["b"]
    foot = q.get("foot", jnp.zeros(2))
    hip = foot + whole * along(q["stance"])
    return {
        "hip": hip,
        "leg": foot + p["a"] * along(q["stance"]),
        "other leg": hip - p["b"] * along(q["swing"]),
        "other foot": hip - whole * along(q["swing"]),
    }


def masses(p):
    return {"hip": p["M"], "leg": p["m"], "other leg": p["m"]}


def kinetic(now, p):
    speeds = jax.jvp(lambda q: places(q, p), (now.q,), (now.v,))[1]
    return sum(0.5 * m * speeds[name] @ speeds[name] for name, m in masses(p).items())


def potential(now, p):
    up = GRAVITY * jnp.stack([-jnp.sin(p["slope"]), jnp.cos(p["slope"])])
    return sum(m * up @ places(now.q, p)[name] for name, m in masses(p).items())


# %% [markdown]
# **The landing.** On one foot, two angles describe the walker, and no constraint is needed. For the
# moment of the landing both feet are free to move: the same energies, with the place of a foot as a
# coordinate more. The new foot is held from now on, so its velocity is taken by an impulse: that is
# `impact`, and nothing is left to derive by hand.

# %%
loose = Mechanism(
    kinetic=kinetic, potential=potential, constraint=lambda now, p: {"held": now.q["foot"]}
)


def land(now, p):
    """The legs exchange their parts; d remembers how far the walker has come, and on which leg."""
    q, v, d = now.q, now.v, now.d
    foot, speed = jax.jvp(lambda q: places(q, p)["other foot"], (q,), (v,))
    new_q = {"stance": q["swing"], "swing": q["stance"]}
    new_v = {"stance": v["swing"], "swing": v["stance"]}
    x = {"q": {**new_q, "foot": jnp.zeros(2)}, "v": {**new_v, "foot": speed}}
    after = loose.impact(saltus.Instant(now.t, x), p)
    new_d = {"ahead": False, "place": d["place"] + foot[0], "left": 1 - d["left"]}
    return now.replace(q=new_q, v={name: after[name] for name in new_v}, d=new_d)


# %% [markdown]
# Straight legs cannot swing through: half-way, the swinging foot dips under the ground, as in all
# studies of this walker (a real one bends its knees, or walks on stepping stones). We look away:
# the landing is in force only after the swinging foot has passed the other one. Passing is an event
# of its own, because `active` is looked at when something happens, not all the time.

# %%
passing = saltus.Event(
    "passing",
    guard=lambda now, p: places(now.q, p)["other foot"][0] - 0.1,
    direction="rising",
    reset=lambda now, p: now.replace(d={**now.d, "ahead": True}),
)
landing = saltus.Event(
    "landing",
    guard=lambda now, p: places(now.q, p)["other foot"][1],
    active=lambda now, p: now.d["ahead"],
    reset=land,
)
walker = Mechanism(kinetic=kinetic, potential=potential, events=[passing, landing])
system = walker.system()

p = {"M": 10.0, "m": 5.0, "a": 0.5, "b": 0.5, "slope": np.deg2rad(3.0)}


def stand(angle, stance, swing):
    """Both feet on the ground, just after a landing."""
    d = {"ahead": False, "place": 0.0, "left": 1}
    return walker.start(
        {"stance": angle, "swing": -angle}, {"stance": stance, "swing": swing}, p, d=d
    )


guess = stand(0.25, -1.0, -0.3)
walk = saltus.solve(system, guess, p, 6.0)
print(walk.events.of("landing"))
# %% [markdown]
# It walks, and settles into a rhythm. **The gait** is a motion that repeats itself from landing to
# landing; `orbit` finds it by Newton's method. Its multipliers say what becomes of a small push
# after a step. One is always 1 (a push along the motion only shifts the time); the others are
# inside the unit circle: the gait is stable, and errors shrink by the largest of them in each step.

# %%
gait = saltus.orbit(system, guess, p, event="landing")
print(gait)
step = float(gait.end.d["place"])
shrink = np.sort(np.abs(gait.multipliers))[-2]
print(f"step {step:.5f} m, period {gait.period:.5f} s, speed {step / gait.period:.5f} m/s")
assert gait.stable

# The state from the literature (four digits, angles to the vertical, g = 9.8):
found, tilt = gait.start.x, p["slope"]
ours = [
    found["q"]["stance"] - tilt,
    found["q"]["swing"] - tilt,
    found["v"]["stance"],
    found["v"]["swing"],
]
assert np.allclose(ours, [0.2187, -0.3234, -1.0918, -0.3772], atol=6e-5)

# On the gait a landing takes as much as the slope gives: counted from the foot that stands, the
# energy after it is that from before.
last = gait.solution.events.of("landing").nth(0)
before, after = walker.energy(last.before, p), walker.energy(last.after, p)
lost = (p["M"] + 2 * p["m"]) * GRAVITY * step * np.sin(p["slope"])
print(
    f"energy per step: {lost:.4f} J from the slope; before and after: {before:.8f}, {after:.8f} J"
)
assert abs(before - after) < 1e-8

# %% [markdown]
# **Checked with other means**: the equations of motion and the balance of angular momentum as they
# are printed in the literature, angles to the vertical, integrated by SciPy.


# %%
def accelerations(t, y):
    (swing, stance), speeds = y[:2], y[2:]
    M, m, a, b = p["M"], p["m"], p["a"], p["b"]
    whole, s, c = a + b, np.sin(y[1] - y[0]), np.cos(y[1] - y[0])
    coupling = m * whole * b
    mass = [[m * b**2, -coupling * c], [-coupling * c, (M + m) * whole**2 + m * a**2]]
    turning = coupling * s * np.array([speeds[1] ** 2, -(speeds[0] ** 2)])
    weight = GRAVITY * np.array(
        [m * b * np.sin(swing), -(M * whole + m * (a + whole)) * np.sin(stance)]
    )
    return [*speeds, *np.linalg.solve(mass, -turning - weight)]


def one_step(y):
    """From landing to landing, and the time it took."""

    def both_down(t, y):
        return np.cos(y[1] + tilt) - np.cos(y[0] + tilt) if t > 0.3 else 1.0

    both_down.terminal = True
    leg = solve_ivp(
        accelerations, (0, 2), y, method="DOP853", rtol=1e-12, atol=1e-12, events=both_down
    )
    (swing, stance), speeds = leg.y[:2, -1], leg.y[2:, -1]
    M, m, a, b = p["M"], p["m"], p["a"], p["b"]
    whole, c = a + b, np.cos(swing - stance)
    then = [[-m * a * b, -m * a * b + (M * whole**2 + 2 * m * a * whole) * c], [0, -m * a * b]]
    now = [
        [m * b * (b - whole * c), m * whole * (whole - b * c) + m * a**2 + M * whole**2],
        [m * b**2, -m * b * whole * c],
    ]
    return np.array([stance, swing, *np.linalg.solve(now, then @ speeds)]), leg.t[-1]


def miss(y):
    return one_step([-y[0] - 2 * tilt, *y])[0][1:] - y


root = fsolve(miss, [0.22, -0.38, -1.09], xtol=1e-12)
period = one_step([-root[0] - 2 * tilt, *root])[1]
print(f"SciPy: angle {root[0] + tilt:.9f}, period {period:.9f}")
assert np.allclose([root[0], root[2], root[1]], [ours[0], ours[2], ours[3]], atol=1e-8)
assert abs(period - gait.period) < 1e-8

# %% [markdown]
# **What makes it faster?** The gradient of the speed goes through the search for the gait, the
# landing and its time. Only the ratio of the masses matters, so their two derivatives balance.


# %%
def speed(p):
    gait = saltus.orbit(system, guess, p, event="landing")
    return gait.end.d["place"] / gait.period


slopes = jax.jacfwd(speed)(p)
print("d speed / d:", {name: round(float(v), 6) for name, v in slopes.items()})
assert abs(p["M"] * slopes["M"] + p["m"] * slopes["m"]) < 1e-8

# %% [markdown]
# **Steeper.** On steeper slopes a multiplier grows towards -1, and beyond the gait is unstable: the
# walker limps, with every second step the same. Newton's method does not mind and follows the gait
# further. Where it happens is a root of the multiplier.


# %%
def steeper(degrees, near):
    """The gait on another slope, its speed, and its multipliers but the one along the motion."""
    found = saltus.orbit(system, near, {**p, "slope": np.deg2rad(degrees)}, event="landing")
    others = np.delete(found.multipliers, np.argmin(np.abs(found.multipliers - 1)))
    return found.start, float(found.end.d["place"] / found.period), others


degrees = np.arange(1.0, 5.51, 0.5)
near, gaits = gait.start, []
for slope in degrees:
    near, *facts = steeper(slope, near)
    gaits.append(facts)
    print(f"{slope:.1f} degrees: {facts[0]:.4f} m/s, multipliers {np.round(facts[1], 4)}")
limit = brentq(lambda slope: 1 + np.min(steeper(slope, near)[2].real), 4.2, 4.6, xtol=1e-4)
print(f"unstable from {limit:.3f} degrees on")
assert abs(limit - 4.391) < 1e-3  # SciPy, by differences of its map: between 4.390 and 4.391

# %%
plt = pyplot()
figure, axes = plt.subplot_mosaic("AAA;BCD", figsize=(10.6, 6.6))
ink = dict(color="#2b3137", lw=1.4)


def world(now, p):
    """The walker in the world: feet, hip and masses, down the slope."""
    turn = jnp.array(
        [[jnp.cos(p["slope"]), jnp.sin(p["slope"])], [-jnp.sin(p["slope"]), jnp.cos(p["slope"])]]
    )
    at = places(now.x["q"], p)
    on_left = now.d["left"] == 1
    pick = lambda one, two: jnp.where(on_left, one, two)
    foot = jnp.zeros(2)
    seen = {
        "left": pick(foot, at["other foot"]),
        "right": pick(at["other foot"], foot),
        "hip": at["hip"],
        "left mass": pick(at["leg"], at["other leg"]),
        "right mass": pick(at["other leg"], at["leg"]),
    }
    ahead = jnp.stack([now.d["place"], 0.0])
    low = -4.0 * jnp.sin(p["slope"]) - 0.25
    hill = {
        "top": turn @ jnp.array([-0.9, 0.0]),
        "end": turn @ jnp.array([3.9, 0.0]),
        "under end": jnp.stack([3.9, low]),
        "under top": jnp.stack([-0.9, low]),
    }
    return {name: turn @ (place + ahead) for name, place in seen.items()} | hill


steady = saltus.solve(system, gait.start, p, 6 * float(gait.period))
axis = axes["A"]
ts = np.linspace(0.0, 5.5 * float(gait.period), 34)
seen = jax.vmap(lambda now: world(now, p))(steady.at(ts))
for k in range(len(ts)):
    for foot, colour in (("left", COLOURS[0]), ("right", COLOURS[1])):
        leg = np.array([seen[foot][k], seen["hip"][k]])
        axis.plot(*leg.T, color=colour, lw=1.6, alpha=0.25 + 0.65 * k / len(ts))
axis.plot(*np.asarray(seen["hip"]).T, "o", color=COLOURS[3], ms=3.5)
reach = np.array([-0.65, 3.0])
axis.plot(reach, -np.tan(p["slope"]) * reach, **ink)
axis.set(aspect="equal", xlabel="[m]", title="The gait", xlim=reach)

axis = axes["B"]
for sol, colour, width, text in (
    (walk, "#9aa5b1", 0.9, "from the guess"),
    (steady, COLOURS[0], 2.0, "gait"),
):
    fine = np.linspace(0.0, float(sol.final.t) - 1e-9, 3000)
    now = sol.at(fine)
    on_left = np.asarray(now.d["left"]) == 1
    angle, rate = (
        np.rad2deg(np.where(on_left, now.x[k]["stance"], now.x[k]["swing"])) for k in ("q", "v")
    )
    cut = np.abs(np.diff(on_left.astype(int), prepend=on_left[0])) > 0
    axis.plot(np.where(cut, np.nan, angle), rate, color=colour, lw=width, label=text)
axis.set(xlabel="angle of the left leg [degrees]", ylabel="its rate [degrees/s]")
axis.set_title("One leg, swinging and standing")
axis.legend(loc="lower left")

axis = axes["C"]
log = walk.events.of("landing").after.x
parts = [log[k][leg] - found[k][leg] for k in ("q", "v") for leg in ("stance", "swing")]
distance = np.linalg.norm(parts, axis=0)
steps = np.arange(1, len(distance) + 1)
axis.semilogy(steps, distance, "o-", color=COLOURS[1], label="after each landing")
axis.semilogy(
    steps,
    distance[0] * shrink ** (steps - 1.0),
    color="#8a94a0",
    ls="--",
    label=f"{shrink:.3f} per step",
)
axis.set(xlabel="step", ylabel="distance from the gait", title="How fast a bad start is forgotten")
axis.legend(loc="lower left")

axis = axes["D"]
speeds, sizes = [g[0] for g in gaits], [np.max(np.abs(g[1])) for g in gaits]
axis.plot(degrees, speeds, "o-", color=COLOURS[0], label="speed [m/s]")
around = np.array([2.0, 4.0])
tangent = step / gait.period + slopes["slope"] * np.deg2rad(around - 3)
axis.plot(around, tangent, **ink, label="its derivative at 3 degrees")
axis.plot(degrees, sizes, "s-", color=COLOURS[2], ms=4, label="largest multiplier")
axis.axhline(1.0, color=COLOURS[2], lw=0.9, ls=":")
axis.axvspan(limit, degrees[-1], color=COLOURS[1], alpha=0.1, lw=0)
axis.annotate(
    f"unstable beyond\n{limit:.2f} degrees", (limit - 0.08, 1.75), ha="right", color=COLOURS[1]
)
axis.set(
    xlabel="slope [degrees]",
    title="Speed and stability",
    xlim=(degrees[0], degrees[-1]),
    ylim=(0.4, 2.0),
)
axis.legend(loc="center left")
figure.savefig("compass_walker.png", dpi=92)

# %%
saltus.animate(
    steady,
    world,
    bars=[("left", "hip"), ("right", "hip"), ("top", "end", "under end", "under top")],
    path="compass_walker.gif",
    p=p,
    fps=15,
    speed=0.6,
    trail=["hip"],
    size=(5.6, 2.5),
    title="Down 3 degrees",
)
