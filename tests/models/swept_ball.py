"""A ball with drag that tests of sweeps differentiate, and how they compare numbers."""

import jax
import numpy as np

import saltus
from saltus import Event, HybridSystem, Instant, solve

METHOD = saltus.Tsit5(rtol=1e-9, atol=1e-9)

# Two sweeps over the same rows differ by the order of additions only; 1e-12 leaves room for a few
# hundred rows and for sensitivities of several hundred.
ROUNDING = 1e-12


def drag_ball(k):
    """A ball with drag; `k` is closed over, possibly traced."""
    return HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -p["g"] - k * now.x["v"]},
        rate=lambda now, p: now.x["h"] ** 2,
        events=[
            Event(
                "bounce",
                guard=lambda now, p: now.x["h"],
                reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
            )
        ],
    )


SYSTEM = HybridSystem(
    flow=lambda now, p: {"h": now.x["v"], "v": -p["g"] - p["k"] * now.x["v"]},
    rate=lambda now, p: now.x["h"] ** 2,
    events=drag_ball(0.0).events,
)
P = {"g": 9.81, "e": 0.8, "k": 0.3}
START = Instant(t=0.0, x={"h": 1.0, "v": 0.2})
END = 1.4  # after two bounces


def loss(p):
    sol = solve(SYSTEM, START, p, END, method=METHOD)
    return sol.final.x["h"] * sol.final.x["v"] + sol.integral + sol.events.t[1] ** 2


def flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def same(got, expected, tolerance=ROUNDING):
    got, expected = flat(got), flat(expected)
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.max(np.abs(expected)))
