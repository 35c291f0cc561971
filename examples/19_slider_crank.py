# %% [markdown]
# # A slider-crank that hammers
#
# A motor turns a crank, a rod pushes a slider, and shortly before its dead centre the slider
# strikes an anvil, which stands on a spring and a damper. How far should the anvil stand in the
# way, and how strong should the motor be, so that the blows do a given work with little effort?
#
# The coordinates are mixed: the place of the crank pin, and the position of the slider and of the
# anvil along the guide. Crank and rod are constraints.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq, minimize_scalar

import saltus
from saltus.multibody import Mechanism, stop
from saltus.plot import COLOURS, pyplot

CRANK, ROD = 0.1, 0.3  # m
DEAD = CRANK + ROD  # where the slider turns round
FLYWHEEL, BAR, SLIDER, ANVIL = 0.02, 0.4, 1.0, 2.0  # kg m^2, and kg
STIFFNESS, DAMPING, IDLE = 4000.0, 60.0, 20.0  # N/m, N s/m, rad/s


def slider(now):
    """The place of the slider (or its velocity, from velocities)."""
    return jnp.stack([now["slider"], 0.0])


def kinetic(now, p):
    """A flywheel on the crank, a uniform rod, slider and anvil."""
    pin, end = now.v["pin"], slider(now.v)
    rod = BAR / 6 * (pin @ pin + pin @ end + end @ end)
    wheel = 0.5 * FLYWHEEL / CRANK**2 * pin @ pin
    return wheel + rod + 0.5 * SLIDER * end @ end + 0.5 * ANVIL * now.v["anvil"] ** 2


def spring(now, p):
    return 0.5 * STIFFNESS * (now.q["anvil"] - DEAD + p["overlap"]) ** 2


def bars(now, p):
    pin, rod = now.q["pin"], slider(now.q) - now.q["pin"]
    return {"crank": pin @ pin - CRANK**2, "rod": rod @ rod - ROD**2}


# %% [markdown]
# The motor's torque falls with its speed. It acts on the pin, across the crank; the damper acts on
# the anvil. Beside the effort we integrate what both do, for the balance of energy.


# %%
def turning(now):
    """The speed of the crank."""
    (x, y), (u, w) = now.q["pin"], now.v["pin"]
    return (x * w - y * u) / CRANK**2


def torque(now, p):
    return p["torque"] * (1 - turning(now) / IDLE)


def force(now, p):
    across = jnp.stack([-now.q["pin"][1], now.q["pin"][0]]) / CRANK**2
    return {
        "pin": torque(now, p) * across,
        "slider": 0.0,
        "anvil": -DAMPING * now.v["anvil"],
    }


anvil = stop(
    "blow",
    lambda now, p: now.q["slider"],
    at=lambda now, p: now.q["anvil"],
    side="below",
    restitution=lambda now, p: p["e"],
)
# %% [markdown]
# A turn is counted at the outer dead centre, and after four of them the run ends at the inner one.
# So it is always four turns, however fast.

# %%
TURNS = 4
count = saltus.Event(
    "turn",
    guard=lambda now, p: now.q["pin"][1],
    direction="rising",
    reset=lambda now, p: now.replace(d=now.d + 1),
)
end = saltus.Event(
    "end",
    guard=lambda now, p: now.q["pin"][1],
    active=lambda now, p: now.d >= TURNS,
    terminal=True,
)
press = Mechanism(
    kinetic=kinetic,
    potential=spring,
    force=force,
    constraint=bars,
    contacts=anvil,
    events=[count, end],
    cost=lambda now, p: {
        "effort": torque(now, p) ** 2,
        "motor": torque(now, p) * turning(now),
        "damper": DAMPING * now.v["anvil"] ** 2,
    },
    output=lambda now, p: {"q": now.q, "v": now.v, "turning": turning(now), "rod": now.lam["rod"]},
)
system = press.system()
method = saltus.Tsit5(rtol=1e-9, atol=1e-9)


def begin(p):
    """The crank at right angles to the guide, at 12 rad/s."""
    q = {
        "pin": jnp.array([0.0, -CRANK]),
        "slider": np.sqrt(ROD**2 - CRANK**2),
        "anvil": DEAD - p["overlap"],
    }
    v = {"pin": jnp.array([CRANK * 12.0, 0.0]), "slider": CRANK * 12.0, "anvil": 0.0}
    return press.start(q, v, p, d=0)


def run(p):
    return saltus.solve(
        system, begin(p), p, 10.0, method=method, max_events=64, max_steps=4000, throw=False
    )


p = {"torque": 4.0, "overlap": 0.01, "e": 0.4}
sol = run(p)
print(press.report(begin(p), p))
print(sol.events.of("blow"))

# %% [markdown]
# **The balance.** What the motor gives is stored, or goes into the damper, or is lost in blows: the
# energies just before and after each blow, from the log, have to make it up.


# %%
def lost_in_blows(sol, p):
    stored = press.energy(sol.final, p) - press.energy(begin(p), p)
    return sol.integral["motor"] - sol.integral["damper"] - stored


blows = sol.events.of("blow")
drops = jax.vmap(lambda a, b: press.energy(a, p) - press.energy(b, p))(blows.before, blows.after)
print(f"lost in blows: {np.round(drops, 5)} J; by the balance {lost_in_blows(sol, p):.8f} J in all")
assert abs(jnp.sum(drops) - lost_in_blows(sol, p)) < 1e-6

# %% [markdown]
# **Steady running.** From blow to blow the motion settles into a cycle, and fast: the multipliers
# say that a disturbance is worth a few per cent after a turn. (The discrete state counts on; a
# cycle is one of the continuous states.)

# %%
late = jax.tree.map(lambda v: v[-1], blows.after).replace(t=0.0, d=0)
cycle = saltus.orbit(system, late, p, event="blow")
print(f"a turn takes {cycle.period:.6f} s; multipliers {np.round(cycle.multipliers, 5)}")
assert cycle.stable
assert abs(cycle.period - np.diff(blows.t)[-1]) < 1e-4

# %% [markdown]
# **The design.** Every turn is to deliver 0.8 J in its blow. Effort (the integral of the squared
# torque) is to be small and so is the time it takes; a second counts like 2 (N m)^2 s. The
# gradients of all this go through the blows, their times and the end of the run.

# %%
WORK, HURRY = 0.8, 2.0


def design(p):
    sol = run(p)
    loss = sol.integral["effort"] + HURRY * sol.final.t
    return loss, {"work": lost_in_blows(sol, p) / TURNS, "sol": sol}


best = saltus.minimise(
    design,
    p,
    free=["torque", "overlap"],
    bounds={"torque": (1.0, 10.0), "overlap": (0.003, 0.016)},
    scales={"torque": "log", "overlap": "log"},
    subject_to={"work": WORK},
    optimiser="slsqp",
)
print(best)
assert best.ok and best.violation < 1e-6

# %% [markdown]
# Two numbers can be checked by looking: the loss along the curve on which the work is right.


# %%
@jax.jit
def facts(torque, overlap):
    loss, extras = design({**p, "torque": torque, "overlap": overlap})
    return loss, extras["work"]


torques = np.linspace(2.4, 6.4, 17)
curve = [brentq(lambda o, t=t: float(facts(t, o)[1]) - WORK, 0.009, 0.016) for t in torques]
losses = np.array([facts(t, o)[0] for t, o in zip(torques, curve, strict=True)])
k = np.argmin(losses)
fit = np.polyfit(torques[k - 2 : k + 3] - torques[k], losses[k - 2 : k + 3], 4)
lowest = minimize_scalar(lambda t: np.polyval(fit, t), bounds=(-0.3, 0.3), method="bounded")
print(f"by looking: torque {torques[k] + lowest.x:.4f} N m, loss {lowest.fun:.6f}")
assert abs(lowest.fun - best.loss) < 1e-5
assert abs(torques[k] + lowest.x - best.p["torque"]) < 0.02

# %%
plt = pyplot()
figure, axes = plt.subplots(2, 2, figsize=(9.8, 6.8))
after = best.extras["sol"]
for sol_, colour, text in ((sol, "#8a94a0", "first guess"), (after, COLOURS[0], "design")):
    fine = np.linspace(0.0, float(sol_.final.t), 1500)
    y = sol_(fine)
    axes[0, 0].plot(fine, 1e3 * (y["q"]["slider"] - DEAD), color=colour, lw=1.3, label=text)
    axes[0, 0].plot(fine, 1e3 * (y["q"]["anvil"] - DEAD), color=colour, lw=1.3, ls="--")
    axes[0, 1].plot(fine, y["turning"], color=colour, lw=1.3, label=text)
    axes[1, 0].plot(fine, 2 * ROD * y["rod"], color=colour, lw=1.3, label=text)
axes[0, 0].set(ylim=(-40, 24), ylabel="beyond the dead centre [mm]", xlabel="t [s]")
axes[0, 0].set_title("Slider, and anvil (dashed)")
axes[0, 0].legend(loc="upper right", ncols=2)
axes[0, 1].set(ylabel="[rad/s]", xlabel="t [s]", title="Speed of the crank")
axes[0, 1].legend(loc="lower right")
axes[1, 0].set(
    ylabel="[N]", xlabel="t [s]", title="Force in the rod, between blows (pushing: positive)"
)

axis = axes[1, 1]
grid = np.meshgrid(np.linspace(2.0, 7.0, 14), np.linspace(0.004, 0.016, 14), indexing="ij")
loss, work = np.vectorize(lambda t, o: tuple(map(float, facts(t, o))))(*grid)
shades = axis.contourf(grid[0], 1e3 * grid[1], loss, levels=12, cmap="Blues", alpha=0.75)
figure.colorbar(shades, ax=axis, label="effort and time")
lines = axis.contour(
    grid[0],
    1e3 * grid[1],
    work,
    levels=[0.3, 0.4, 0.5, 0.6, 0.7, 0.9],
    colors="#5c6b73",
    linewidths=0.8,
)
axis.clabel(lines, fmt="%.1f J", fontsize=8)
axis.plot(torques, 1e3 * np.array(curve), color=COLOURS[1], lw=1.8, label="0.8 J per turn")
axis.plot(p["torque"], 1e3 * p["overlap"], "o", color="#8a94a0", ms=7, mec="white")
axis.plot(best.p["torque"], 1e3 * best.p["overlap"], "o", color=COLOURS[1], ms=8, mec="white")
axis.set(xlabel="torque at rest [N m]", ylabel="overlap [mm]", title="All designs")
axis.legend(loc="lower right", labelcolor=COLOURS[1])
axis.grid(False)
figure.savefig("slider_crank.png", dpi=100)


# %%
def points(now, p):
    q = now.x["q"]
    x, a = q["slider"], q["anvil"]
    boxes = {"s": (x - 0.025, x + 0.025, 0.025), "a": (a + 0.025, a + 0.065, 0.04)}
    corners = {
        f"{name}{k}": jnp.stack([right if k in (1, 2) else left, high if k > 1 else -high])
        for name, (left, right, high) in boxes.items()
        for k in range(4)
    }
    return {"O": jnp.zeros(2), "pin": q["pin"], "end": jnp.stack([x, 0.0]), **corners}


saltus.animate(
    after,
    points,
    bars=[("O", "pin"), ("pin", "end"), [f"s{k}" for k in range(4)], [f"a{k}" for k in range(4)]],
    path="slider_crank.gif",
    p=best.p,
    fps=14,
    speed=0.28,
    trail=["pin"],
    size=(5.2, 2.5),
    title="A slider-crank with an anvil",
)
