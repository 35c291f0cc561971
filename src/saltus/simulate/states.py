"""The states of the loop and its decisions: one enumeration for each question it asks.

Compiled programs carry the values, and choose their branches by them.
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
    """What becomes of a step that was tried."""

    TEST_TANGENT = -1  # its error says nothing about derivatives: rejected until a tangent does
    REJECT = 0
    ACCEPT = 1
    INSPECT = 2  # a guard may cross zero in it
    LOCATE = 3  # it is an iteration of event location


class Inspection(enum.IntEnum):
    """What a closer look at the guards within a step finds."""

    NO_CROSSING = 0
    FIRES_AT_START = 1  # a guard that is zero where the step starts leaves to its firing side
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
    """The first place of a step, seen as two cubics, where a guard may have crossed."""

    LEFT_MINIMUM = 0
    MIDDLE = 1
    RIGHT_MINIMUM = 2
    END = 3
    NOWHERE = 4


class Side(enum.IntEnum):
    """What is known of a guard's sign where a step starts."""

    NEGATIVE = -1  # armed, on that side
    FRESH = 0  # zero, and it has not fired here: it fires if it leaves to its firing side
    POSITIVE = 1  # armed, on that side
    FIRED = 2  # zero because it has just fired, or started there: leaving arms it again
    INACTIVE = 3  # not in force
    ABOVE = 4  # of either direction, zero after a jump from above: leaving downward fires
    BELOW = 5  # the same from below
    PASSED = 7  # zero, has fired, and the reset has left its motion alone: it goes on through zero


class Grazing(enum.IntEnum):
    """What a guard does that touches zero without crossing it."""

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
