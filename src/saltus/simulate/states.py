"""The decisions of the loop, and what it knows about guards: an enumeration for each.

Compiled programs contain the values, and choose their branches by them.
"""

from __future__ import annotations

import enum

from ..base.types import Array, Flag


class Move(enum.IntEnum):
    """What an iteration does."""

    ATTEMPT = 0  # a step, or one iteration of event location
    ARRIVE = 1  # the approach to a jump that was chosen
    FIRE = 2  # the jump


class Verdict(enum.IntEnum):
    """What happens to a step that was tried."""

    TEST_TANGENT = -1  # its error says nothing about derivatives: a tangent must be tested first
    REJECT = 0
    ACCEPT = 1
    INSPECT = 2  # a guard may cross zero in it
    LOCATE = 3  # it is an iteration of event location


class Inspection(enum.IntEnum):
    """What an inspection of the guards within a step finds."""

    NO_CROSSING = 0
    FIRES_AT_START = 1  # a guard that is zero at the start leaves zero to its firing side
    RESTS = 2  # a contact that does not move
    CROSSING = 3
    UNSURE = 4  # the step is too long to tell


class Location(enum.IntEnum):
    """What an iteration of event location finds."""

    CONTINUE = 0
    NO_CROSSING = 1  # the step is accepted as it is
    EVENT = 2  # it ends at the crossing
    EARLIER_CROSSING = 3  # of another guard


class Place(enum.IntEnum):
    """The first place in a step where a guard, modelled by two cubics, may have crossed."""

    LEFT_MINIMUM = 0
    MIDDLE = 1
    RIGHT_MINIMUM = 2
    END = 3
    NOWHERE = 4


class Side(enum.IntEnum):
    """What is known about a guard's sign at the start of a step."""

    NEGATIVE = -1  # armed, on that side
    FRESH = 0  # zero, and it has not fired here: it fires if it leaves zero to its firing side
    POSITIVE = 1  # armed, on that side
    FIRED = 2  # zero because it has just fired, or started there: it is armed when it leaves zero
    INACTIVE = 3  # switched off by `active`
    ABOVE = 4  # of direction "either", zero after a jump from above: it fires if it goes below
    BELOW = 5  # of direction "either", zero after a jump from below: it fires if it goes above
    PASSED = 7  # zero and has fired, and the reset did not change its motion: it passes through


class Grazing(enum.IntEnum):
    """What happens when a guard touches zero without crossing it."""

    NO_EVENT = 0
    RAISE = 1
    FIRE = 2


def is_zero(side: Array) -> Flag:
    """Whether a guard is zero where a step starts."""
    return (
        (side == Side.FRESH) | (side == Side.FIRED) | (side == Side.PASSED)
        | (side == Side.ABOVE) | (side == Side.BELOW)
    )  # fmt: skip


def is_armed(side: Array) -> Flag:
    """Whether a guard is on a side from which it can cross."""
    return (side == Side.POSITIVE) | (side == Side.NEGATIVE)
