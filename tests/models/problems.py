"""The problems by name: models that carry their exact answers (`problem.py`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from problem import Problem
from problems_balls import (
    ball_until,
    corner,
    drag_ball,
    drag_ball_modes,
    drag_ball_when,
    kicked_ball,
    paper_ball,
)
from problems_inputs import driven_tank, ramped_tank, sampled_controller
from problems_switches import (
    breaking_spring,
    breaking_spring_discrete,
    memory,
    nested_chain,
    simple_hybrid_ode,
    terminal_time,
    thermostat,
    thermostat_thresholds,
    threshold_reset,
)

PROBLEMS: dict[str, Callable[[], Problem]] = {
    "simple_hybrid_ode": simple_hybrid_ode,
    "seven_bounces": lambda: paper_ball(
        "seven_bounces", "P4a", 7.0, [-9.5, -8.0, -6.0, -5.0, -4.0, -3.0, -2.5]
    ),
    "one_bounce": lambda: paper_ball("one_bounce", "P4b", 1.9, [-9.0]),
    "breaking_spring": breaking_spring,
    "breaking_spring_discrete": breaking_spring_discrete,
    "threshold_reset": threshold_reset,
    "terminal_time": terminal_time,
    "ball_until": ball_until,
    "nested_chain": nested_chain,
    "corner": corner,
    "thermostat": thermostat,
    "thermostat_thresholds": thermostat_thresholds,
    "memory": memory,
    "drag_ball": lambda: drag_ball("drag_ball"),
    "drag_ball_modes": drag_ball_modes,
    "drag_ball_when": drag_ball_when,
    "kicked_ball": kicked_ball,
    "sampled_controller": sampled_controller,
    "driven_tank": driven_tank,
    "ramped_tank": ramped_tank,
}


# Motions that are polynomials of degree 2 between events: any method here is exact on them.
DRAG_FREE = {
    "seven_bounces",
    "one_bounce",
    "threshold_reset",
    "terminal_time",
    "ball_until",
    "corner",
    "kicked_ball",
}


@cache
def problem(name: str) -> Problem:
    return PROBLEMS[name]()
