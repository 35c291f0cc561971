"""torchdiffeq: `odeint_event` ends a solve at an event; jumps are chained in a Python loop."""

import torch
from torchdiffeq import odeint, odeint_event

from harness import Case
from problems import core as problems

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

TOLERANCES = {"rtol": problems.TOLERANCE, "atol": problems.TOLERANCE}

# An event at the very start of a solve ends it at once, so every bounce starts a little higher.
LIFT = torch.tensor(1e-10)


def ball(q):
    """The height at the end, for q = (h0, v0, g, e)."""
    h0, v0, g, e = q
    flow = lambda t, y: torch.stack([y[1], -g])
    ground = lambda t, y: y[0]
    t, y = torch.zeros(()), torch.stack([h0, v0])
    for _ in range(problems.BALL_BOUNCES):
        t, path = odeint_event(
            flow, y, t, event_fn=ground, odeint_interface=odeint, method="dopri5", **TOLERANCES
        )
        y = torch.stack([LIFT, -e * path[-1][1]])
    times = torch.stack([t, torch.tensor(problems.BALL_END)])
    return odeint(flow, y, times, method="dopri5", **TOLERANCES)[-1][0]


def start(differentiated):
    return torch.tensor(problems.BALL, requires_grad=differentiated)


def solve():
    q = start(False)
    return lambda: ball(q)


def value_and_gradient():
    q = start(True)
    return lambda: torch.autograd.grad(ball(q), q)[0]


def cases():
    return [
        Case("ball", "solve", "torchdiffeq", solve, problems.BALL_HEIGHT),
        Case("ball", "value+gradient", "torchdiffeq", value_and_gradient, problems.BALL_GRADIENT),
    ]
