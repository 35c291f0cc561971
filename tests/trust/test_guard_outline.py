"""Guards between rows, seen through polynomials of degree 5: where they turn, what they cross."""

import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus.trust.guard_outline import along, edges, outline, value_at

ROUNDING = 1e-30


def seen(roots, start, h, tiny=ROUNDING):
    """The polynomial with these roots over (start, start + h)."""
    y = np.polynomial.Polynomial.fromroots(roots)
    t = np.array([start, start + h])
    given = [jnp.asarray(np.real(y.deriv(k)(t) if k else y(t)))[:, None] for k in range(3)]
    left, right = edges(jnp.asarray([[h]]), *given)
    found = outline(left, right, jnp.full((2, 1), tiny))
    return y, left, right, found


def test_a_minimum_is_found_with_its_value():
    y, left, right, found = seen([1 + 0.1j, 1 - 0.1j], 0.3, 1.0)
    assert found.place[0, 0] == pytest.approx(0.7, abs=1e-12)
    assert value_at(left, right, found.place)[0, 0] == pytest.approx(y(1.0).real, rel=1e-9)
    assert not found.falls[0, 0] and not found.rises[0, 0]


@pytest.mark.parametrize("place", [0.5, 0.25])
def test_a_minimum_on_a_point_that_is_looked_at_is_found(place):
    """As in rows that lie symmetrically about it."""
    _, _, _, found = seen([place + 0.1j, place - 0.1j], 0.0, 1.0)
    assert found.place[0, 0] == pytest.approx(place, abs=1e-12)


@pytest.mark.parametrize("roots", [[2.0], [1.0 + 1j, 1.0 - 1j, 3.0]])
def test_a_guard_that_only_moves_away_does_not_turn(roots):
    """The greatest distance is no turn towards zero."""
    _, _, _, found = seen(roots, 2.0, 0.5)
    assert found.place[0, 0] == 1.0 and not (found.falls | found.rises)[0, 0]


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("second", [1.1, 1.9])
@pytest.mark.parametrize("mirrored", [False, True])
def test_two_more_crossings_close_to_an_event_are_seen(gap, second, mirrored):
    """A row that starts, or ends, at a root with two others close by."""
    roots = np.array([0.0, gap, second * gap])
    _, _, _, found = seen(-roots, -1.0, 1.0) if mirrored else seen(roots, 0.0, 1.0)
    assert found.falls[0, 0] and found.rises[0, 0]


def test_what_rounding_hides_is_not_a_crossing():
    roots = np.array([0.5 - 1e-6, 0.5 + 1e-6])  # 1e-12 below zero
    assert not seen(roots, 0.0, 1.0, tiny=1e-11)[3].falls[0, 0]
    assert seen(roots, 0.0, 1.0, tiny=1e-13)[3].falls[0, 0]


def test_uncertain_ends_count_where_they_matter():
    assert along((1.0, 1e9), 0.0) == 1.0 and along((1e9, 1.0), 1.0) == 1.0
    assert along((0.0, 1.0), 1e-4) == pytest.approx(1e-11, rel=1e-3)


def test_a_release_from_sliding_is_no_touch():
    """A block on a belt sticks and slips: where it slips, the surface is zero its slope is, too."""

    def block(side):
        def flow(now, p):
            x, v = now.x["x"], now.x["v"]
            return {"x": v, "v": -x - side * p["mu"] / (1 + 0.5 * side * (v - p["belt"]))}

        return flow

    system = saltus.sliding(lambda now, p: now.x["v"] - p["belt"], block(1), block(-1), name="belt")
    start = saltus.Instant(0.0, {"x": 0.0, "v": 0.0})
    place = lambda p: saltus.solve(system, start, p, 3.0).final.x["x"]
    found = saltus.certify(place, {"mu": 1.0, "belt": 0.6}, differences=True)
    assert len(found.signature) == 2  # it sticks, and slips
    assert found.verdict == "TRUSTED", found
    assert abs(found.differences.difference - found.differences.gradient) < 1e-5
