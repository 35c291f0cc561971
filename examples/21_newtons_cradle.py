# %% [markdown]
# # Newton's cradle, and what simultaneous impacts mean
#
# One ball strikes a row of four, and one flies off on the other side. Everybody knows this, and it
# does not follow from mechanics: where several contacts close at the same instant, rigid bodies,
# momentum and energy do not determine what happens. A simulation has to choose a model, and this
# page shows the choices: `impacts="one by one"`, `impacts="together"`, and small gaps, which leave
# nothing to choose because no two impacts coincide.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus.multibody import Mechanism, contact
from saltus.plot import COLOURS, pyplot


def touching(left):
    """Balls on a line, without size: ball number `left` and the next one."""
    return contact(
        f"{left + 1}-{left + 2}",
        gap=lambda now, p: now.q["x"][left + 1] - now.q["x"][left],
        restitution=lambda now, p: p["e"],
    )


def row(count, impacts, order=1):
    pairs = range(count - 1)[::order]
    contacts = [touching(k) for k in pairs]
    return Mechanism(mass=lambda now, p: {"x": p["m"]}, contacts=contacts, impacts=impacts)


def strike(balls, x, v, p):
    """The solution after all impacts; momentum is kept, and energy where e = 1."""
    start = balls.start({"x": jnp.asarray(x)}, {"x": jnp.asarray(v)}, p)
    sol = saltus.solve(balls.system(), start, p, 3.0)
    before, after = start.x["v"]["x"], sol.final.x["v"]["x"]
    assert abs(jnp.sum(p["m"] * (after - before))) < 1e-12
    lost = 0.5 * jnp.sum(p["m"] * (before**2 - after**2))
    assert lost > -1e-12 and (p["e"] < 1 or lost < 1e-12)
    assert np.all(np.diff(sol.final.x["q"]["x"]) > -1e-12)  # nobody passes through another
    return sol


# %% [markdown]
# **A row of five equal, elastic balls.** Where they touch, the first impact sets the second ball
# moving towards the third, which fires at the same instant, and so on: a chain. One ball flies off,
# for both models, and so it is with gaps of a micrometre or of a centimetre.

# %%
equal = {"m": jnp.ones(5), "e": 1.0}
one = [1.0, 0.0, 0.0, 0.0, 0.0]
for impacts in ("one by one", "together"):
    for gap in (0.0, 1e-6, 1e-2):
        x = [-1.0, 0.0, gap, 2 * gap, 3 * gap]
        sol = strike(row(5, impacts), x, one, equal)
        after = np.asarray(sol.final.x["v"]["x"])
        print(f"{impacts:>10}, gaps {gap:g}: {np.round(after, 6)} after {len(sol.events)} impacts")
        assert np.allclose(after, [0, 0, 0, 0, 1], atol=1e-12)

# %% [markdown]
# But this is a choice too. Newton's law of impact, applied to all contacts that are closed, asks
# that every relative velocity be reversed, also those of zero. Then the row moves on as one body,
# and the first ball bounces back. That keeps momentum and energy just as well. (saltus does not do
# this: contacts that do not approach are left alone until they do.)


# %%
def all_at_once(v, e):
    """Equal masses: impulses in all gaps that reverse all their rates."""
    rates = np.diff(np.eye(5), axis=0)
    return v + rates.T @ np.linalg.solve(rates @ rates.T, -(1 + e) * rates @ v)


block = all_at_once(np.array(one), 1.0)
print("all contacts at once:", block)
assert np.allclose(block, [-0.6, 0.4, 0.4, 0.4, 0.4])
assert np.isclose(block.sum(), 1) and np.isclose(block @ block, 1)

# %% [markdown]
# **Two balls strike three, with losses.** With gaps there are ten impacts, some of them between
# balls that have almost the same speed. Two balls fly off nearly together and the others creep
# after them. How small the gaps are does not matter, only how soon it is over.

# %%
lossy = {"m": jnp.ones(5), "e": 0.9}
two = [1.0, 1.0, 0.0, 0.0, 0.0]
outcomes = []
for gap in (1e-6, 1e-5, 1e-4):
    sol = strike(row(5, "one by one"), [-1.0 - gap, -1.0, 0.0, gap, 2 * gap], two, lossy)
    outcomes.append(np.asarray(sol.final.x["v"]["x"]))
    print(f"gaps {gap:g}: {np.round(outcomes[-1], 4)} after {len(sol.events)} impacts")
assert np.allclose(outcomes, outcomes[0], atol=1e-9)
print("all contacts at once:", np.round(all_at_once(np.array(two), 0.9), 4))

# %% [markdown]
# As long as the sequence of impacts is the same, everything is differentiable. One ball strikes
# four: every impact hands on the part (1 + e)/2 of the speed.


# %%
def last_ball(e):
    x = [-1.0, 0.0, 0.01, 0.02, 0.03]
    p = {"m": jnp.ones(5), "e": e}
    balls = row(5, "one by one")
    start = balls.start({"x": jnp.asarray(x)}, {"x": jnp.asarray(one)}, p)
    return saltus.solve(balls.system(), start, p, 3.0).final.x["v"]["x"][4]


speed, slope = jax.value_and_grad(last_ball)(0.9)
print(f"speed of the last ball {speed:.6f}, its derivative by e {slope:.6f}")
assert np.allclose([speed, slope], [0.95**4, 2 * 0.95**3], rtol=1e-12)

# %% [markdown]
# **Where the order decides.** A heavy ball between two light ones, which strike it from both sides,
# all elastic. At the same instant, three answers: first the left, first the right, or together.
# A symmetric situation, and two of the models break the symmetry, because an order has to be chosen
# (it is that of declaration). Momentum and energy are kept by all three.

# %%
heavy = {"m": jnp.array([1.0, 6.0, 1.0]), "e": 1.0}


def from_both_sides(late, impacts="one by one", order=1, p=heavy):
    """The right ball comes `late` (in seconds) after the left one."""
    sol = strike(row(3, impacts, order), [-1.0, 0.0, 1.0 + late], [1.0, 0.0, -1.0], p)
    return np.asarray(sol.final.x["v"]["x"])


tied = {
    "left first": from_both_sides(0.0),
    "right first": from_both_sides(0.0, order=-1),
    "together": from_both_sides(0.0, "together"),
}
for name, after in tied.items():
    print(f"{name:>11}: {np.round(after, 4)}")
assert np.allclose(tied["together"], [-1, 0, 1])
assert np.allclose(tied["left first"], -tied["right first"][::-1])
assert tied["left first"][1] < -0.08

# %% [markdown]
# Let one of them be late, by any time at all: now nothing is to be chosen, and the outcome is that
# of its order. As a function of the delay it jumps at zero. **There the derivative does not
# exist**, and no method of differentiation can give it: at a tie, `jax.grad` returns the derivative
# of the order that was carried out, and on either side that of the motion on that side. A loss that
# depends on such an order has a step in it. If the order matters, the model of rigid bodies says
# too little, and stiffness (of the balls, of the air between them) has to be part of it.

# %%
delays = np.concatenate([-np.geomspace(0.1, 1e-9, 9), np.geomspace(1e-9, 0.1, 9)])
found = np.array([from_both_sides(late) for late in delays])
assert np.allclose(found[delays < 0], tied["right first"])
assert np.allclose(found[delays > 0], tied["left first"])

# %% [markdown]
# **The cradle** as it stands on desks: five pendulums with 0.1 mm between the balls and a little
# loss at every impact. More and more they swing as one; no rule says "one in, one out".

# %%
LENGTH, RADIUS, GRAVITY = 0.3, 0.02, 9.81


def centres(q, p):
    rest = (2 * RADIUS + p["gap"]) * jnp.arange(-2.0, 3.0)
    return jnp.stack([rest + LENGTH * jnp.sin(q["angle"]), -LENGTH * jnp.cos(q["angle"])], axis=1)


def clack(left):
    def gap(now, p):
        at = centres(now.q, p)
        return jnp.linalg.norm(at[left + 1] - at[left]) - 2 * RADIUS

    return contact(f"{left + 1}-{left + 2}", gap, restitution=lambda now, p: p["e"])


cradle = Mechanism(
    mass=LENGTH**2,
    potential=lambda now, p: -GRAVITY * LENGTH * jnp.sum(jnp.cos(now.q["angle"])),
    contacts=[clack(k) for k in range(4)],
)
p = {"gap": 1e-4, "e": 0.96}
start = cradle.start({"angle": jnp.array([-0.6, 0.0, 0.0, 0.0, 0.0])}, None, p)
swing = saltus.solve(cradle.system(), start, p, 8.0, max_events=600)
print(f"{len(swing.events)} impacts in 8 s")
before = np.array(jax.vmap(lambda now: cradle.energy(now, p))(swing.events.before))
after = np.array(jax.vmap(lambda now: cradle.energy(now, p))(swing.events.after))
lost = np.sum(before - after)
assert np.all(before - after > -1e-9)
total = cradle.energy(start, p) - cradle.energy(swing.final, p)
print(f"energy lost {total:.6f} J/kg, in impacts {lost:.6f}")
assert abs(total - lost) < 1e-5

# %%
plt = pyplot()
figure, axes = plt.subplot_mosaic("AAB;CCC", figsize=(10.0, 6.6))
axis = axes["A"]
rows = [
    (
        "one strikes, e = 1",
        one,
        [("one after the other", [0, 0, 0, 0, 1]), ("all contacts at once", block)],
    ),
    (
        "two strike, e = 0.9",
        two,
        [
            ("one after the other", outcomes[0]),
            ("all contacts at once", all_at_once(np.array(two), 0.9)),
        ],
    ),
]
height = 0.0
labels, heights = [], []
for title, before, models in rows:
    for text, v, colour in [
        (f"{title}: before", before, "#8a94a0"),
        *((t, v, c) for (t, v), c in zip(models, COLOURS, strict=False)),
    ]:
        axis.plot(range(1, 6), np.full(5, height), "o", color=colour, ms=17, alpha=0.85)
        for k, speed in enumerate(v):
            if abs(speed) > 1e-9:
                arrow = dict(arrowstyle="-|>", color=colour, lw=2.2, shrinkA=0, shrinkB=0)
                axis.annotate(
                    "",
                    (k + 1 + 0.75 * speed, height + 0.33),
                    (k + 1, height + 0.33),
                    arrowprops=arrow,
                )
            axis.text(
                k + 1,
                height,
                f"{speed + 0.0:.2f}",
                ha="center",
                va="center",
                color="white",
                fontsize=6.5,
            )
        labels.append(text)
        heights.append(height)
        height -= 1.0
    height -= 0.35
axis.set_yticks(heights, labels)
axis.set(xlim=(0.3, 6.1), ylim=(height + 0.6, 0.75), title="Velocities before and after", xticks=[])
axis.grid(False)

axis = axes["B"]
signed = np.sign(delays) * (np.log10(np.abs(delays)) + 10)
for k, name in enumerate(("left", "middle", "right")):
    for side in (delays < 0, delays > 0):
        axis.plot(signed[side], found[side, k], color=COLOURS[k], label=name if side[0] else None)
    axis.plot(0, tied["together"][k], "o", color=COLOURS[k], mfc="white", ms=6)
axis.set_xticks([-9, -5, 0, 5, 9], ["-0.1", "-1e-5", "0", "1e-5", "0.1"])
axis.set(xlabel="delay of the right ball [s]", title="Velocities after; circles: together")
axis.legend(loc="center left", bbox_to_anchor=(0.0, 0.65), fontsize=8)

axis = axes["C"]
fine = np.linspace(0.0, 8.0, 2400)
angles = np.rad2deg(np.asarray(swing.at(fine).x["q"]["angle"]))
for k in (1, 2, 3, 0, 4):
    axis.plot(fine, angles[:, k], color=COLOURS[k], lw=1.3, label=f"ball {k + 1}")
axis.set(
    xlabel="t [s]",
    ylabel="angle [degrees]",
    title="A cradle with losses: the five become one pendulum",
)
axis.legend(loc="upper right", ncols=5)
axis.margins(x=0.01)
figure.savefig("newtons_cradle.png")


# %%
def points(now, p):
    at, rest = centres(now.x["q"], p), (2 * RADIUS + p["gap"]) * jnp.arange(-2.0, 3.0)
    hooks = {f"hook {k + 1}": jnp.stack([rest[k], 0.0]) for k in range(5)}
    turns = np.linspace(0, 2 * np.pi, 13)[:-1]
    rim = RADIUS * np.stack([np.sin(turns), np.cos(turns)], axis=1)
    balls = {f"{k + 1}.{j}": at[k] + rim[j] for k in range(5) for j in range(12)}
    return hooks | {f"ball {k + 1}": at[k] for k in range(5)} | balls


film = saltus.solve(cradle.system(), start, p, 3.0, max_events=600)
saltus.animate(
    film,
    points,
    bars=[[f"{k + 1}.{j}" for j in range(12)] for k in range(5)]
    + [(f"hook {k + 1}", f"ball {k + 1}") for k in range(5)],
    path="newtons_cradle.gif",
    p=p,
    fps=14,
    speed=0.5,
    size=(3.6, 2.8),
    title="Newton's cradle",
)
