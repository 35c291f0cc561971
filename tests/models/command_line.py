"""A file with models for tests of the command line, and when its ball bounces."""

import csv

import numpy as np

BALL = """
import jax.numpy as jnp
import saltus

print("loading")
bounce = saltus.Event(
    "bounce",
    guard=lambda now, p: now.x["h"],
    reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
)
system = saltus.HybridSystem(
    lambda now, p: {"h": now.x["v"], "v": -p["g"]},
    events=[bounce],
    rate=lambda now, p: now.x["h"],
    units={"t": "s", "h": "m", "v": "m/s"},
)
start = saltus.Instant(t=0.0, x={"h": 5.0, "v": 0.0})
p = {"g": 9.81, "e": 0.8}
t1 = 2.0
ball = saltus.Scenario(system, start, p, t1)


def dropped():
    return ball.replace(start=lambda p: start.replace(x={"h": 5.0, "v": p["g"] * 0.1}))


def needy(height):
    return ball


kink = saltus.Scenario(
    saltus.HybridSystem(lambda now, p: {"x": jnp.where(now.x["x"] > p["c"], -1.0, -3.0)}),
    saltus.Instant(t=0.0, x={"x": 1.0}),
    {"c": 0.3},
    1.0,
)
wrong = saltus.HybridSystem(
    lambda now, p: {"h": now.x["speed"], "v": 0.0}
)
number = 3
"""

G, E, H = 9.81, 0.8, 5.0
FIRST = float(np.sqrt(2 * H / G))  # the first bounce, after a fall from 5 m
SECOND = FIRST * (1 + 2 * E)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
