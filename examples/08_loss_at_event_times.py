# %% [markdown]
# # A loss at the times of events
#
# Two papers use the bouncing ball to show how gradients go through events: Andersson and Goppert
# (2024) let it bounce seven times, Schäfer and Schauer (2021) once, and look at losses that are
# evaluated *at* the bounces. Such a loss depends on the parameters in two ways: through the state,
# and through the moment at which the state is looked at. The event log has both.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus.plot import COLOURS, pyplot

ball = saltus.HybridSystem(
    lambda now, p: {"z": now.x["v"], "v": -p["g"]},
    events=[
        saltus.Event(
            "bounce",
            guard=lambda now, p: now.x["z"],
            reset=lambda now, p: now.replace(x={"z": now.x["z"], "v": -p["gamma"] * now.x["v"]}),
        )
    ],
    rate=lambda now, p: now.x["z"],
)


def solve(p, end):
    return saltus.solve(ball, saltus.Instant(t=0.0, x={"z": p["z0"], "v": p["v0"]}), p, end)


def check(found, *exact):
    for name, value in zip(("z0", "v0", "g", "gamma"), exact, strict=True):
        print(f"  d/d{name:<6} {float(found[name]):+.12f}")
        assert abs(found[name] - value) < 1e-7 * max(1.0, abs(value))


# %% [markdown]
# **Seven bounces.** The loss compares the speed of each impact with a measured one. The log's
# `before` is the instant just before each event, with its time and state.

# %%
seven = {"z0": 5.0, "v0": 0.0, "g": 9.81, "gamma": 0.8}
measured = jnp.array([-9.5, -8.0, -6.0, -5.0, -4.0, -3.0, -2.5])


def impact_loss(p):
    impacts = solve(p, 7.0).events.of("bounce").before.x["v"]
    return jnp.sum((impacts - measured) ** 2)


print(f"loss at the impacts: {impact_loss(seven):.12f}")
gradient = jax.grad(impact_loss)(seven)
check(gradient, 1.4377543504765, 0.0, 0.73280038250587, 27.958091407159)
print("height after 7 s:")
gradient = jax.grad(lambda p: solve(p, 7.0).final.x["z"])(seven)
check(gradient, -1.2318861429259, -0.18111091684247, 0.63388820894865, -37.40810258704)
print("integral of the height:")
gradient = jax.grad(lambda p: solve(p, 7.0).integral)(seven)
check(gradient, 3.0490255715189, 0.50366843882196, -0.50397687908593, 49.174571820751)

# %% [markdown]
# **One bounce**, thrown downwards a little. The second paper prints the first derivative as 0.84.

# %%
one = {"z0": 5.0, "v0": -0.1, "g": 10.0, "gamma": 0.8}
print("height after 1.9 s:")
gradient = jax.grad(lambda p: solve(p, 1.9).final.x["z"])(one)
check(gradient, 0.83782811289143, 0.10153172112097, -0.10390684353179, 9.0999549761262)
print("loss at the impact:")
gradient = jax.grad(lambda p: (solve(p, 1.9).events.before.x["v"][0] + 9.0) ** 2)(one)
check(gradient, 2.0008999325056, -0.020008999325056, 1.0004499662528, 0.0)

# %% [markdown]
# **Implicit or explicit?** If the ball were hit at a fixed time, it would move in the same way, but
# depend on its parameters in another. A `TimeEvent` at the number at which the ball meets the floor
# gives that other gradient: a gradient is a property of the model, not of the trajectory.

# %%
impact = float(solve(one, 1.9).events.t[0])
struck = saltus.HybridSystem(
    ball.flow,
    events=[saltus.TimeEvent("strike", lambda now, p: impact, reset=ball.events[0].reset)],
)


def struck_height(p):
    start = saltus.Instant(t=0.0, x={"z": p["z0"], "v": p["v0"]})
    return saltus.solve(struck, start, p, 1.9).final.x["z"]


assert abs(struck_height(one) - solve(one, 1.9).final.x["z"]) < 1e-9
print("height after 1.9 s, struck at a fixed time:")
gradient = jax.grad(struck_height)(one)
check(gradient, 1.0, 0.26208999775011, -0.18338720431978, 9.0999549761262)

# %% [markdown]
# The picture: the loss as a function of the restitution coefficient, with its slope at three
# points. How many bounces fit into seven seconds changes along the way, and so would the length of
# the log, so here we solve a little longer and take the first seven.


# %%
def loss_of_seven(gamma):
    impacts = solve({**seven, "gamma": gamma}, 7.4).events.before.x["v"][:7]
    return jnp.sum((impacts - measured) ** 2)


plt = pyplot()
figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.6))
sol = solve(seven, 7.0)
t = np.linspace(0.0, 7.0, 1500)
axes[0].plot(t, sol(t)["z"], color=COLOURS[0])
impacts = np.asarray(sol.events.before.x["v"])
times = np.asarray(sol.events.t)
axes[0].plot(times, 0 * times, "o", color=COLOURS[1], ms=4)
axes[0].set(xlabel="t [s]", ylabel="z [m]", title="Seven bounces")
twin = axes[0].inset_axes([0.5, 0.55, 0.48, 0.42])
twin.plot(np.arange(1, 8), impacts, "o-", color=COLOURS[0], ms=3.5, lw=1.0, label="model")
twin.plot(np.arange(1, 8), measured, "x", color=COLOURS[1], ms=5, label="measured")
twin.set_title("speed at impact [m/s]", fontsize=8.5)
twin.legend(fontsize=8)

gammas = jnp.linspace(0.785, 0.815, 31)
axes[1].plot(gammas, [loss_of_seven(x) for x in gammas], color=COLOURS[0])
for x in (0.789, 0.8, 0.811):
    y, slope = jax.value_and_grad(loss_of_seven)(x)
    reach = np.array([-0.004, 0.004])
    axes[1].plot(x + reach, y + slope * reach, color=COLOURS[1], lw=1.3)
    axes[1].plot(x, y, "o", color=COLOURS[1], ms=4)
axes[1].set(xlabel="restitution gamma", ylabel="loss [m^2/s^2]", title="The loss and its tangents")
figure.savefig("loss_at_event_times.png")
