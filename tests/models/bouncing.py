"""A bouncing ball for tests of events, and how they run a system and read its log."""

import saltus
from saltus import (
    Event,
    HybridSystem,
    Instant,
    solve,
)

G = 9.81
TIGHT = saltus.Tsit5(rtol=1e-10, atol=1e-10)

# Times of events on polynomial motions come out to a few units in the last place.
ROUNDING = 1e-13


def bounce(e):
    return lambda now, p: now.replace(x={"h": now.x["h"], "v": -e * now.x["v"]})


def ball(e=0.8, **more):
    return HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": -G},
        events=[Event("bounce", guard=lambda now, p: now.x["h"], reset=bounce(e))],
        **more,
    )


def run(system, x, t1, t0=0.0, d=None, mode=None, p=None, **options):
    return solve(system, Instant(t=t0, x=x, d=d, mode=mode), p, t1, **{"method": TIGHT, **options})


def names(sol):
    """The names of the events that happened, in order."""
    return [sol.events.names[int(k)] for k in sol.events.which]
