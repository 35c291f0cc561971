# %% [markdown]
# # A ball with drag: two modes
#
# Air resistance goes with the square of the speed and points against it:
#
#     h' = v,   v' = -g - k v |v|
#
# There is no closed form any more, and `v |v|` has a kink where the ball turns round. The kink is
# so weak that values hardly notice it, but second derivatives do. So we write what happens: the
# ball is on its way `up`, with drag pulling it down, or on its way `down`, with drag holding it.
# Each mode is smooth, and the exits say when one gives way to the other.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus import Exit, Mode
from saltus.plot import COLOURS, pyplot


def drag(sign):
    return lambda now, p: {"h": now.x["v"], "v": -p["g"] - sign * p["k"] * now.x["v"] ** 2}


def bounce(now, p):
    return now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]})


apex = Exit(lambda now, p: now.x["v"], to="down", name="apex")
floor = Exit(lambda now, p: now.x["h"], to="up", reset=bounce, name="bounce")
ball = saltus.automaton(
    {"up": Mode(drag(+1), exits=[apex]), "down": Mode(drag(-1), exits=[floor])},
    units={"t": "s", "h": "m", "v": "m/s"},
)

p = {"h0": 2.0, "v0": 1.0, "g": 9.81, "k": 0.15, "e": 0.85}


def solve(p, tolerance=1e-10):
    start = saltus.Instant(t=0.0, x={"h": p["h0"], "v": p["v0"]}, mode="up")
    return saltus.solve(ball, start, p, 2.5, method=saltus.Tsit5(tolerance, tolerance))


sol = solve(p)
print(sol.events)

# %% [markdown]
# The initial height and speed are parameters here. Inside a function of `p`, a solve may use `p`
# anywhere: in the start, the end time, the save times, the flow, the guards and the resets.
#
# The time of the third bounce, and what shifts it. The reference values are Taylor series computed
# in 70 digits.


# %%
def third_bounce(p):
    return solve(p).events.of("bounce").t[2]


gradient = jax.grad(third_bounce)(p)
for name, value in gradient.items():
    print(f"d t3 / d{name:<2} = {value:+.9f}")
reference = {
    "h0": 0.3999242693983, "v0": 0.1405546455219, "g": -0.1261944396025,
    "k": -1.9837617878805, "e": 2.1775355362942,
}  # fmt: skip
for name, value in reference.items():
    assert abs(gradient[name] - value) < 1e-8

# %% [markdown]
# What do the modes buy? The same ball with `abs` in the flow agrees in the value. Its second
# derivatives do not: no step ends at the kink, and error control does not look at derivatives.
# Where modes are too much to write, `saltus.when` marks the kink: it picks one of two values and
# makes an event of its own where the condition changes.


# %%
def with_abs(v):
    return v * jnp.abs(v)


def with_when(v):
    return saltus.when(v > 0, v**2, -(v**2))


def end(v0, square, tolerance=1e-8):
    system = saltus.HybridSystem(
        lambda now, p: {"h": now.x["v"], "v": -p["g"] - p["k"] * square(now.x["v"])},
        events=[saltus.Event("bounce", guard=lambda now, p: now.x["h"], reset=bounce)],
    )
    start = saltus.Instant(t=0.0, x={"h": p["h0"], "v": v0})
    method = saltus.Tsit5(tolerance, tolerance)
    return saltus.solve(system, start, p, 2.5, method=method).final.x["h"]


def end_with_modes(v0, tolerance=1e-8):
    return solve({**p, "v0": v0}, tolerance).final.x["h"]


second = jax.hessian(end_with_modes)
truth = second(1.0, 1e-12)
modes = abs(second(1.0) - truth)
kink, marked = (abs(jax.hessian(end)(1.0, square) - truth) for square in (with_abs, with_when))
print(f"error of d2h/dv0^2: {modes:.0e} modes, {marked:.0e} when, {kink:.0e} abs")
assert abs(end(1.0, with_abs) - end_with_modes(1.0)) < 1e-6
assert modes < 1e-8 and marked < 1e-8 and kink > 1e-6

# %% [markdown]
# On the left the ball for four strengths of drag; on the right what moves its third bounce, by the
# gradient above.

# %%
plt = pyplot()
figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.7), width_ratios=[1.5, 1])
t = np.linspace(0.0, 2.5, 800)
for j, k in enumerate([0.0, 0.05, 0.15, 0.4]):
    axes[0].plot(t, solve({**p, "k": k})(t)["h"], color=COLOURS[j], label=f"k = {k:g}/m")
axes[0].set(xlabel="t [s]", ylabel="height [m]", title="A ball with drag", ylim=(-0.05, 2.6))
axes[0].legend(ncols=4, loc="upper center", handlelength=1.0, columnspacing=1.2)

names = ["e", "k", "g", "v0", "h0"]
shifts = [float(gradient[a]) * p[a] * 0.01 * 1e3 for a in names]
bars = axes[1].barh(names, shifts, color=[COLOURS[v < 0] for v in shifts], height=0.6)
axes[1].bar_label(bars, fmt="%+.1f", padding=4, fontsize=9)
axes[1].axvline(0.0, color="#8a94a0", lw=1.0)
axes[1].set(title="Shift of the third bounce", xlabel="ms for 1 % more of the parameter")
axes[1].margins(x=0.2)
axes[1].grid(axis="y", visible=False)
figure.savefig("ball_with_drag.png")
