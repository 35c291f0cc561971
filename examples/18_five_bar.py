# %% [markdown]
# # Five bars that hit the ground
#
# The mechanism of Corner, Sandu and Sandu (2018, section 7): two cranks A-1 and B-3, two couplers
# 1-2 and 3-2, two springs, gravity, and a floor under the tool point 2. The coordinates are those
# of the three moving points, six numbers for two degrees of freedom. Four bars of fixed length
# are constraints, and their forces are whatever keeps the lengths:
#
#     M q'' = F(q) + G(q)^T lambda,   G = d Phi / d q,   0 = Phi(q)
#
# That is a DAE of index 3. `Mechanism` takes it as it stands.

# %%
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus.multibody import Mechanism, jump
from saltus.plot import COLOURS, pyplot

A, B = np.array([-0.5, 0.0]), np.array([0.5, 0.0])
CRANK, COUPLER, FLOOR, END = 1.4142, 1.8027, -2.35, 5.0

# A uniform bar of mass m between two points: m/3 for each of them, m/6 between them.
inertia = np.array([[5 / 6, 1 / 4, 0], [1 / 4, 1, 1 / 4], [0, 1 / 4, 5 / 6]])
weight = 9.81 * np.array([1.25, 1.5, 1.25])


def distance(a, b):
    return jnp.linalg.norm(a - b)


def potential(now, p):
    """Weight and two springs, from A to 3 and from B to 2."""
    q = now.q
    heights = jnp.stack([q["p1"][1], q["p2"][1], q["p3"][1]])
    stretch = jnp.stack([distance(A, q["p3"]) - p["L01"], distance(B, q["p2"]) - p["L02"]])
    return weight @ heights + 50.0 * stretch @ stretch


def bars(now, p):
    q = now.q
    ends = {
        "A1": (q["p1"] - A, CRANK),
        "12": (q["p2"] - q["p1"], COUPLER),
        "23": (q["p3"] - q["p2"], COUPLER),
        "3B": (q["p3"] - B, CRANK),
    }
    return {name: bar @ bar - length**2 for name, (bar, length) in ends.items()}


# %% [markdown]
# **The impact of the paper** is a statement about velocities: that of point 2 is reflected, and the
# other two points follow as the bars demand. That is what `jump` is for: it takes the velocities
# that are given and finds the rest. (A `contact` would balance impulses instead, and the cranks and
# couplers would share the blow.) The costs of the paper are integrals of the tool's velocity and
# acceleration.

# %%
floor = jump(
    "floor",
    guard=lambda now, p: now.q["p2"][1] - FLOOR,
    velocities=lambda now, p: {"p2": now.v["p2"] * jnp.array([1.0, -1.0])},
)
five_bar = Mechanism(
    mass=np.kron(inertia, np.eye(2)),
    potential=potential,
    constraint=bars,
    contacts=floor,
    cost=lambda now, p: {"vy": now.v["p2"][1], "ay": now.a["p2"][1]},
    output=lambda now, p: {"q": now.q, "v": now.v},
)


def start(p):
    """Only the tool point is given; the others are guesses that are moved onto the bars."""
    guess = {"p1": [-1.1, -1.3], "p2": [0.53029, -2.10283], "p3": [1.7, -0.7]}
    q = {name: jnp.array(place) for name, place in guess.items()}
    return five_bar.start(q, None, p, assemble=True, hold="p2")


p = {"L01": 2.2360, "L02": 2.0615}
print(five_bar.report(start(p), p))

# %% [markdown]
# **The motion**, as an ODE whose steps end on the constraints (form "index1", the default).

# %%
accurate = saltus.Tsit5(rtol=1e-10, atol=1e-10)
stiff = saltus.Radau5(rtol=1e-8, atol=1e-8)


def move(p, ts=None, form="index1", method=accurate):
    return saltus.solve(five_bar.system(form), start(p), p, END, ts=ts, method=method)


sol = move(p)
print(sol.events)
assert len(sol.events) == 9

# %% [markdown]
# **Sensitivities over time.** The derivatives of the saved states and of the running costs, at
# fixed times, by the two free lengths of the springs. Velocities jump at impacts, and so do the
# sensitivities of *all* of them, also those of the continuous positions: a longer spring moves the
# time of the impact. The pieces between impacts start and end a billionth of a second beside them.

# %%
borders = [0.0, *np.asarray(sol.events.t), END]
ts = np.stack([np.linspace(a + 1e-9, b - 1e-9, 60) for a, b in pairwise(borders)])


def course(p):
    saved = move(p, ts.ravel())
    place, speed = saved.y["q"]["p2"], saved.y["v"]["p2"]
    tool = {"x": place[:, 0], "y": place[:, 1], "vy": speed[:, 1]}
    return tool | {"int vy": saved.integrals["vy"], "int ay": saved.integrals["ay"]}


values, slopes = course(p), jax.jacfwd(course)(p)

# The paper compares with central differences. They agree where both trajectories are on the same
# side of the impact, and are off by 1/step between.
step = 1e-5
up, down = course({**p, "L02": p["L02"] + step}), course({**p, "L02": p["L02"] - step})
differences = {name: (up[name] - down[name]) / (2 * step) for name in up}
off = np.abs(differences["vy"] - slopes["vy"]["L02"])
print(f"differences: within {np.median(off):.1e} of the derivative, but {off.max():.0f} at impacts")
assert np.median(off) < 1e-3 < 1e3 < off.max()

# %% [markdown]
# **Against the reference**: minimal coordinates, Taylor series of high order, 66 digits.

# %%
reference = {  # value at t = 5, and its derivatives with respect to L01 and L02
    "y": [-2.3117612924665, -0.52148517599367, -22.233312094061],
    "vy": [-1.4783519349625, 0.65301119149182, -8.3772560425879],
    "int vy": [-0.20893129246648, -0.52148517599367, -22.233312094061],
    "int ay": [-25.143412681593, 2.3329452473776, -166.45349212078],
}
print("               value        d/dL01        d/dL02")
for name, exact in reference.items():
    ours = [float(v[-1]) for v in (values[name], slopes[name]["L01"], slopes[name]["L02"])]
    print(f"{name:>8}", *(f"{v:13.8f}" for v in ours))
    assert np.allclose(ours, exact, rtol=1e-6, atol=1e-7)

# %% [markdown]
# The same gradient by an adjoint sweep, which costs about as much for two springs as for two
# hundred:


# %%
def cost(p):
    return move(p).integral["ay"]


adjoint = jax.grad(cost)(p)
print(
    "gradient of the integral of y'', adjoint:", {k: round(float(v), 8) for k, v in adjoint.items()}
)
assert np.allclose([adjoint["L01"], adjoint["L02"]], reference["int ay"][1:], rtol=1e-7)

# %% [markdown]
# **Two other ways to compute it.** "index2" is a DAE, with a multiplier for every bar and one more
# for its velocity. "penalty", the paper's way, replaces bars by stiff springs with dampers: the
# constraints hold nearly, how nearly says `alpha`. The paper's residuals stay below 1e-6 and 1e-5.

# %%
forms = {
    "index 1": {"method": accurate},
    "index 2": {"form": "index2", "method": stiff},
    "penalty": {"form": "penalty", "method": accurate},
}


def residuals(y):
    """The largest residual of positions, and of velocities."""
    left = five_bar.residuals(saltus.Instant(0.0, y), p)
    return [jnp.max(jnp.abs(jnp.stack(jax.tree.leaves(left[k])))) for k in left]


left = {}
for name, options in forms.items():
    motion = move(p, ts.ravel(), **options)
    left[name] = np.array(jax.vmap(residuals)(motion.y))
    off = abs(motion.y["q"]["p2"][-1, 1] - reference["y"][0])
    print(f"{name}: largest residuals {left[name].max(axis=1)}, error of y2(5) {off:.1e}")
    assert np.all(left[name] < (1e-7 if name == "penalty" else 1e-13)) and off < 1e-7

# %%
plt = pyplot()
figure, axes = plt.subplots(3, 3, figsize=(10.6, 8.4))
LINE = dict(color="#8a94a0", lw=0.8, alpha=0.6, zorder=0.9)


def pieces(axis, flat, **style):
    """A curve that is cut at the impacts."""
    label = style.pop("label", None)
    for k, (t, v) in enumerate(zip(ts, np.reshape(flat, ts.shape), strict=True)):
        axis.plot(t, v, label=label if k == 0 else None, **style)


axis = axes[0, 0]
axis.plot(values["x"], values["y"], color=COLOURS[1], lw=0.9)
axis.axhline(FLOOR, color="#2b3137", lw=1.4)
places = [A, *(np.asarray(start(p).x["q"][k]) for k in ("p1", "p2", "p3")), B]
axis.plot(*np.array(places).T, "o-", color=COLOURS[0], lw=3, mfc="white", ms=5)
for a, b in ((places[0], places[3]), (places[4], places[2])):
    axis.plot(*np.array([a, b]).T, color=COLOURS[2], lw=1.2, ls=(0, (2, 1.5)))
for name, place, shift in zip(
    "A123B", places, ((-7, 4), (-13, -3), (7, -2), (5, -3), (3, 4)), strict=True
):
    axis.annotate(name, place, shift, textcoords="offset points")
axis.set(aspect="equal", xlabel="x [m]", ylabel="y [m]", title="Start, springs, path of point 2")
axis.set(xlim=(-1.5, 2.1), ylim=(-2.55, 0.35))

pieces(axes[0, 1], values["y"], color=COLOURS[0])
axes[0, 1].axhline(FLOOR, color="#2b3137", lw=1.2)
axes[0, 1].set(title="Height of point 2", ylabel="$y_2$ [m]")
pieces(axes[0, 2], values["vy"], color=COLOURS[0])
axes[0, 2].set(title="Its velocity", ylabel=r"$\dot y_2$ [m/s]")

for (name, both), colour in zip(left.items(), COLOURS, strict=False):
    for v, ls, what in zip(both, ("-", ":"), ("positions", "velocities"), strict=True):
        v = np.maximum(v, 1e-17)
        axes[1, 0].plot(ts.ravel(), v, color=colour, lw=1, ls=ls, label=f"{name}, {what}")
axes[1, 0].set(yscale="log", ylim=(1e-17, 1e-2), title="Residuals of the constraints")
axes[1, 0].legend(ncols=2, fontsize=7, loc="upper left", columnspacing=1, handlelength=1.4)

for axis, name, title, ylabel in (
    (axes[1, 1], "y", "Sensitivity of the height", r"$dy_2/dL_0$"),
    (axes[1, 2], "vy", "Sensitivity of the velocity", r"$d\dot y_2/dL_0$ [1/s]"),
    (axes[2, 1], "int vy", r"Sensitivity of $\int \dot y_2$", ""),
    (axes[2, 2], "int ay", r"Sensitivity of $\int \ddot y_2$", "[1/s]"),
):
    if name == "vy":
        axis.plot(ts.ravel(), differences[name], color="#b9c0c7", lw=0.9, label="differences")
    pieces(axis, slopes[name]["L02"], color=COLOURS[1], label="$L_{02}$")
    pieces(axis, slopes[name]["L01"], color=COLOURS[2], label="$L_{01}$")
    lo, hi = np.min(slopes[name]["L02"]), np.max(slopes[name]["L02"])
    axis.set(title=title, ylabel=ylabel, ylim=(lo - 0.12 * (hi - lo), hi + 0.12 * (hi - lo)))
    axis.legend(loc="lower left" if name == "int ay" else "upper left", ncols=3)

pieces(axes[2, 0], values["int vy"], color=COLOURS[0], label=r"$\int \dot y_2$")
pieces(axes[2, 0], values["int ay"], color=COLOURS[3], label=r"$\int \ddot y_2$")
axes[2, 0].set(title="Two costs: impulses do not count")
axes[2, 0].legend(loc="lower left")
for axis in axes.ravel()[1:]:
    axis.margins(x=0.01)
    axis.set_xlabel("t [s]")
    for t in sol.events.t:
        axis.axvline(t, **LINE)
figure.savefig("five_bar.png", dpi=82)

# %% [markdown]
# And as a film:


# %%
def points(now, p):
    q = now.x["q"]
    return {"A": A, "1": q["p1"], "2": q["p2"], "3": q["p3"], "B": B}


saltus.animate(
    sol,
    points,
    bars=["A1", "12", "23", "3B"],
    path="five_bar.gif",
    p=p,
    fps=12,
    speed=0.6,
    trail=["2"],
    ground=FLOOR,
    size=(3.7, 3.0),
    title="Five bars",
)
