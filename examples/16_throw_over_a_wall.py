# %% [markdown]
# # Over a wall with least effort
#
# Two problems of optimal control in which events decide, and nobody knows beforehand how many there
# will be, or in which order.
#
# **A throw.** A ball is to go over a wall, 6 m away and 1.5 m high, after it has bounced at least
# twice, and to be caught 1 m behind it. How is it thrown with the least effort? Free are the two
# components of its initial velocity, and the time at which it is caught.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import saltus
from saltus.estimate.shooting import shoot
from saltus.plot import COLOURS, pyplot

WALL, TOP, CATCHER = 6.0, 1.5, 7.0


def flow(now, p):
    x = now.x
    drag = 0.02 * jnp.hypot(x["vx"], x["vy"])
    return {"x": x["vx"], "y": x["vy"], "vx": -drag * x["vx"], "vy": -9.81 - drag * x["vy"]}


def bounced(now, p):
    return now.replace(x={**now.x, "vx": 0.9 * now.x["vx"], "vy": -0.8 * now.x["vy"]})


def passing(name, x):
    return saltus.Event(name, guard=lambda now, p: now.x["x"] - x, direction="rising")


bounce = saltus.Event("bounce", guard=lambda now, p: now.x["y"], reset=bounced)
ball = saltus.HybridSystem(flow, events=[bounce, passing("wall", WALL)])


def fly(vx, vy, end, ball=ball):
    start = saltus.Instant(t=0.0, x={"x": 0.0, "y": 1.0, "vx": vx, "vy": vy})
    return saltus.solve(ball, start, None, end, max_events=32, max_steps=400, throw=False)


# %% [markdown]
# The loss returns the effort, and beside it what is to be constrained: the height above the wall,
# the place of the second bounce, and where the ball is at the end. What is asked for by `nth` and
# did not happen is NaN; a throw with too few bounces counts as one that violates its constraints.


# %%
def throw(p):
    sol = fly(p["vx"], p["vy"], p["T"])
    over = sol.events.of("wall").nth(0).before.x["y"]
    second = sol.events.of("bounce").nth(1).before.x["x"]
    effort = 0.5 * (p["vx"] ** 2 + p["vy"] ** 2)
    end = sol.final.x
    return effort, {"over": over, "second": second, "x": end["x"], "y": end["y"], "sol": sol}


def cheapest(guess):
    found = saltus.minimise(
        throw,
        guess,
        bounds={"vx": (0.5, 6.0), "vy": (-14.0, 14.0), "T": (1.0, 8.0)},
        subject_to={"over": (TOP, None), "second": (None, WALL), "x": CATCHER, "y": (0.5, 1.5)},
        optimiser="slsqp",
    )
    assert found.violation < 1e-5
    return found


up = cheapest({"vx": 2.0, "vy": 9.0, "T": 4.0})
print(up)
print(up.extras["sol"].events)
assert abs(up.loss - 40.24808) < 1e-3

# %% [markdown]
# (`optimiser="ipopt"` finds the same throw, also from guesses that are further away; its exact
# Hessian takes longer to compile.) Any such method finds a minimum near the first guess, and every
# sequence of events may have its own. Is this the best one? With two numbers to choose we can look:
# throws of every direction and many efforts, all simulated at once. Here the end is fixed and the
# catcher is an event.


# %%
watched = saltus.HybridSystem(flow, events=[*ball.events, passing("catch", CATCHER)])


def facts(effort, angle):
    speed = jnp.sqrt(2 * effort)
    log = fly(speed * jnp.cos(angle), speed * jnp.sin(angle), 8.0, watched).events
    wall, caught = log.of("wall").nth(0), log.of("catch").nth(0)
    bounces = jnp.sum(log.of("bounce").t < wall.t)
    return bounces, wall.before.x["y"], caught.before.x["y"], caught.t


efforts = np.array([*range(18, 39, 3), 39.5, 40.05, 40.2, 40.5, 41, 41.5, *range(42, 57)])
degrees = np.arange(-88.0, 88.1, 0.2)
effort, angle = np.meshgrid(efforts, np.deg2rad(degrees), indexing="ij")
bounces, over, height, when = jax.jit(jax.vmap(jax.vmap(facts)))(effort, angle)
bounces = np.where(np.isnan(over), np.nan, bounces)  # NaN: never gets to the wall
feasible = (bounces >= 2) & (over >= TOP) & (height >= 0.5) & (height <= 1.5)
row, column = np.argwhere(feasible)[0]
print(f"cheapest on the grid: {efforts[row]} at {degrees[column]:.1f} degrees, thrown downwards")

# %% [markdown]
# A throw downwards is a little cheaper. From there `minimise` finds the true minimum; nothing below
# it on the grid is feasible. The picture shows how this can be: the feasible throws are islands,
# and from one to another no path of improvements leads.

# %%
speed, direction = np.sqrt(2 * efforts[row]), angle[row, column]
guess = {"vx": speed * np.cos(direction), "vy": speed * np.sin(direction), "T": when[row, column]}
best = cheapest(guess)
print(best)
assert efforts[row - 1] < best.loss < efforts[row] < up.loss
assert abs(best.loss - 40.10137) < 1e-3

# %% [markdown]
# **A puck.** It slides towards a cushion, 1 m away, with 2 m/s, and 2 s later it is to lie at
# rest where it is now. The force is free, constant on each of 18 pieces, and the integral of its
# square is the cost. One may brake and push back, which costs 8, or use the cushion, which returns
# 60 % of the speed. When to hit it, and how fast?
#
# With `shoot` the trajectory is cut into segments, each with a start of its own, and the gaps
# between them are constrained to zero. The first guess is then not a force but a motion: to the
# cushion as it slides now, and back at an even speed. It need not be possible. It does choose the
# sequence of events: from a motion that turns round in front of the cushion the same call arrives
# at 8. (The default optimiser is IPOPT where `ipyopt` is installed, else SLSQP.)

# %%
LENGTH, SPEED, END, RETURNED, PIECES = 1.0, 2.0, 2.0, 0.6, 18


def returned(now, p):
    return now.replace(x={"x": now.x["x"], "v": -RETURNED * now.x["v"]})


puck = saltus.HybridSystem(
    lambda now, p: {"x": now.x["v"], "v": now.u},
    events=[saltus.Event("cushion", guard=lambda now, p: LENGTH - now.x["x"], reset=returned)],
    inputs=lambda p: saltus.Steps(times[:-1], p["force"]),
    rate=lambda now, p: now.u**2,
)
times = np.linspace(0.0, END, PIECES + 1)
start = saltus.Instant(t=0.0, x={"x": 0.0, "v": SPEED})


def push(p):
    shots = shoot(puck, start, p["nodes"], p, times, max_events=8, max_steps=64)
    end = {name: values[-1] for name, values in shots.ends.items()}
    return shots.integral, {"gaps": jnp.stack([shots.gaps["x"], shots.gaps["v"]]), **end}


inner = times[1:-1]
there = inner < 0.5
motion = {
    "x": np.where(there, 2.0 * inner, (END - inner) / 1.5),
    "v": np.where(there, 2.0, -1.0 / 1.5),
}
control = saltus.minimise(
    push,
    {"force": jnp.zeros(PIECES), "nodes": motion},
    bounds={"nodes.x": (None, LENGTH)},
    subject_to={"gaps": 0.0, "x": 0.0, "v": 0.0},
)
print(f"{control.result}: cost {control.loss:.4f}, largest gap {control.violation:.1e}")

# %% [markdown]
# If the force may vary freely it is linear in time on the way to the cushion and on the way back,
# and the cost of each way has a closed form. What is left is to choose the time and the speed of
# the hit. Eighteen constant pieces cannot cost less, and should not cost much more.


# %%
def way(t, v0, v1):
    return 12 / t**3 - 12 * (v0 + v1) / t**2 + 4 * (v0**2 + v0 * v1 + v1**2) / t


def hit(choice):
    t, v = choice
    return way(t, SPEED, v) + way(END - t, RETURNED * v, 0.0)


ideal = scipy.optimize.minimize(hit, [0.5, 2.0], method="Nelder-Mead", options={"fatol": 1e-12})
sol = saltus.solve(puck, start, control.p, END)
print(f"ideal {ideal.fun:.4f}, hit at {ideal.x[0]:.3f} s; found: hit at {sol.events.t[0]:.3f} s")
assert control.ok
assert ideal.fun < control.loss < 1.05 * ideal.fun
assert len(sol.events) == 1 and abs(sol.events.t[0] - ideal.x[0]) < 0.02
assert abs(sol.final.x["x"]) < 1e-6 and abs(sol.final.x["v"]) < 1e-6

# %%
plt = pyplot()
figure, axes = plt.subplots(2, 2, figsize=(9.4, 6.4), width_ratios=[1.25, 1])
axis = axes[0, 0]
for found, colour, text in ((up, COLOURS[3], "up"), (best, COLOURS[0], "down")):
    path = found.extras["sol"](np.linspace(0.0, float(found.p["T"]), 800))
    axis.plot(path["x"], path["y"], color=colour, label=f"{text}: effort {found.loss:.2f}")
    axis.plot(path["x"][-1], path["y"][-1], "o", color=colour, ms=6)
axis.plot(0.0, 1.0, "o", color="#2b3137", ms=6)
axis.plot([WALL, WALL], [0.0, TOP], color="#2b3137", lw=4, solid_capstyle="butt")
axis.plot([CATCHER, CATCHER], [0.5, 1.5], color=COLOURS[2], lw=4, alpha=0.35)
axis.annotate("caught", (CATCHER + 0.12, 1.5), va="top", color=COLOURS[2])
axis.set(xlim=(-0.3, 7.9), ylim=(-0.1, 5.2), xlabel="x [m]", ylabel="y [m]")
axis.set_title("Over the wall after two bounces")
axis.legend(loc="upper right")

axis = axes[0, 1]
shades = plt.matplotlib.colors.ListedColormap(
    ["#f7f8f9", "#e9edf1", "#d8dfe6", "#c4cfd9", "#adbcc9"]
)
mesh = axis.pcolormesh(
    degrees, efforts, np.minimum(bounces, 4), cmap=shades, vmin=-0.5, vmax=4.5, shading="nearest"
)
bar = figure.colorbar(mesh, ax=axis, ticks=range(5), label="bounces before the wall")
bar.ax.set_yticklabels(["0", "1", "2", "3", "4+"])
axis.plot(degrees[np.nonzero(feasible)[1]], effort[feasible], "s", color=COLOURS[2], ms=3.2)
for found, colour in ((up, COLOURS[3]), (best, COLOURS[0])):
    direction = np.rad2deg(np.arctan2(found.p["vy"], found.p["vx"]))
    axis.plot(direction, found.loss, "o", color=colour, mec="white", ms=7)
axis.annotate("feasible", (-47, 49), color=COLOURS[2])
axis.set(xlabel="angle of the throw [degrees]", ylabel="effort [m$^2$/s$^2$]", title="All throws")
axis.grid(False)

fine = np.linspace(0.0, END, 600)
axes[1, 0].plot(fine, sol(fine)["x"], color=COLOURS[0], label="found")
axes[1, 0].plot(inner, motion["x"], "o", color=COLOURS[3], ms=3.5, label="first guess of the nodes")
axes[1, 0].plot(inner, control.p["nodes"]["x"], "o", color=COLOURS[0], ms=3.5)
axes[1, 0].axhline(LENGTH, color="#2b3137", lw=3)
axes[1, 0].annotate("cushion", (1.95, 0.96), ha="right", va="top")
axes[1, 0].set(xlabel="t [s]", ylabel="x [m]", ylim=(-0.05, 1.04), title="A puck, there and back")
axes[1, 0].legend(loc="lower center")
force = np.append(control.p["force"], control.p["force"][-1])
axes[1, 1].step(times, force, where="post", color=COLOURS[0], label="found, 18 pieces")
for a, b, v0, v1, sign, text in (
    (0.0, ideal.x[0], SPEED, ideal.x[1], 1, "ideal"),
    (ideal.x[0], END, RETURNED * ideal.x[1], 0.0, -1, None),
):
    t = b - a
    ends = np.array([6 / t**2 - (4 * v0 + 2 * v1) / t, -6 / t**2 + (2 * v0 + 4 * v1) / t])
    axes[1, 1].plot([a, b], sign * ends, color=COLOURS[1], lw=1.2, ls="--", label=text)
axes[1, 1].set(xlabel="t [s]", ylabel="force per mass [m/s$^2$]", title="The force")
axes[1, 1].legend(loc="upper left")
figure.savefig("throw_over_a_wall.png")
