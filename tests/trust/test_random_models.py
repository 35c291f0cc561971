"""Never silently wrong: thousands of random models against closed forms.

For every model one of three things has to be true: the answer is right; or the solve says why it
stopped; or the certificate says that the answer cannot be relied on. The models of a family are
drawn half away from degenerate places and half close to them.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duals as du
import families
import families_faint
import families_hidden
import families_jumps
import families_landing
import families_losses
import families_slack
import families_switches
import saltus
from families import TOL, Family
from saltus.trust import REASONS

FAMILIES: dict[str, Family] = {
    **families.FAMILIES,
    **families_switches.FAMILIES,
    **families_jumps.FAMILIES,
    **families_hidden.FAMILIES,
    **families_landing.FAMILIES,
    **families_slack.FAMILIES,
    **families_losses.FAMILIES,
    **families_faint.FAMILIES,
}
LANES = 256  # in one call of a compiled program
BLOCKS = 10  # in the long search: 35 families, 10 blocks of 256
QUICK = ("neuron",)  # the cheapest to compile

# A value may be off by what a change of size TOL, relative and absolute, in every number that the
# model is made of does to it: that is what the error control promises for each step. Errors of up
# to a hundred steps add up, with either sign; the worst seen is 0.3 of this.
VALUE = 3.0
# A gradient that is TRUSTED is right to six digits of its largest entry. What lies below 1e-3 is
# below what absolute tolerances of TOL resolve to that accuracy.
GRADIENT, FLOOR = 1e-6, 1e-3
ALARMS = 0.02  # of the models that are right and away from such places may be called doubtful
USEFUL = 0.8  # of the models away from degenerate places have to be TRUSTED


@dataclasses.dataclass(frozen=True)
class Found:
    """What came out for the lanes of a family, one entry for each."""

    names: str
    q: np.ndarray
    near: np.ndarray
    result: np.ndarray
    levels: np.ndarray  # of each reason
    value_error: np.ndarray  # in units of what is allowed
    gradient_error: np.ndarray

    @property
    def level(self) -> np.ndarray:
        return self.levels.max(axis=1)

    @property
    def done(self) -> np.ndarray:
        return self.result <= 1

    @property
    def wrong_value(self) -> np.ndarray:
        return self.done & (self.level < 2) & ~(self.value_error <= 1)

    @property
    def wrong_gradient(self) -> np.ndarray:
        return self.done & (self.level == 0) & ~(self.gradient_error <= 1)

    @property
    def right(self) -> np.ndarray:
        """To the accuracy that a certificate promises, with nothing near that is not smooth."""
        return self.done & ~self.near & (self.value_error <= 1) & (self.gradient_error <= 1)

    @property
    def false_alarm(self) -> np.ndarray:
        return self.right & (self.level > 0)

    def counts(self) -> dict[str, int]:
        kinds = {
            "trusted": self.done & (self.level == 0),
            "degraded": self.done & (self.level == 1),
            "untrusted": self.done & (self.level == 2),
            "stopped": ~self.done,
            "wrong value": self.wrong_value,
            "wrong gradient": self.wrong_gradient,
            "false alarm": self.false_alarm,
        }
        return {name: int(np.sum(mask)) for name, mask in kinds.items()}

    def worst(self, most: int = 8) -> str:
        """The silent errors, the largest first, with everything needed to see them again."""
        wrong = np.flatnonzero(self.wrong_value | self.wrong_gradient)
        value = np.where(self.wrong_value, self.value_error, 0.0)[wrong]
        gradient = np.where(self.wrong_gradient, self.gradient_error, 0.0)[wrong]
        size = np.nan_to_num(np.maximum(value, gradient), nan=np.inf)
        lines = [f"{len(wrong)} of {len(self.q)} models are silently wrong. q = ({self.names})"]
        for i in wrong[np.argsort(-size, kind="stable")][:most]:
            why = [REASONS[k] for k in np.flatnonzero(self.levels[i])]
            lines.append(
                f"  value off by {self.value_error[i]:.2g}, gradient by "
                f"{self.gradient_error[i]:.2g} of what is allowed, level {self.level[i]} {why}: "
                f"q = {self.q[i].tolist()}"
            )
        return "\n".join(lines)


def _program(family: Family, side_by_side: bool) -> Any:
    """Values, Jacobian, result and certificate of many lanes, compiled once.

    One lane after the other compiles in half the time, and is as fast."""

    def certified(q: Any) -> tuple:
        cert = saltus.certify(lambda q: family.solve(q)[0][0], q)
        result = jnp.max(jnp.stack([c.result for c in cert.certificates]))
        return cert.value[None], cert.gradient[None], result, cert.level[None]

    def plain(q: Any) -> tuple:
        y, pull, sol = jax.vjp(family.solve, q, has_aux=True)
        jacobian = jax.vmap(lambda e: pull(e)[0])(jnp.eye(y.shape[0]))
        return y, jacobian, sol.result, sol.certificate.levels

    lane = certified if family.loss else plain
    return jax.jit(jax.vmap(lane) if side_by_side else lambda q: jax.lax.map(lane, q))


def _truth(family: Family, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(all="ignore"):  # branches that are not taken
        exact = family.truth(du.duals(q))
    values = np.stack([np.asarray(d.value, float) for d in exact], axis=1)
    return values, np.stack([np.asarray(d.partials, float).T for d in exact], axis=1)


def _errors(
    family: Family, q: np.ndarray, got: tuple, want: tuple
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of values and gradients in units of what is allowed; the worst output of each lane."""
    (y, jac), (exact, slope) = got, want
    known = np.abs(np.nan_to_num(slope))  # a value may exist without its derivative
    condition = 1 + np.abs(exact) + np.sum(known * (1 + np.abs(q))[:, None, :], axis=2)
    if family.reads is not None:
        condition = condition + family.reads(q)[:, None]
    value = np.max(np.abs(y - exact) / (VALUE * TOL * condition), axis=1)
    size = np.max(np.abs(slope), axis=2)
    size = np.maximum(np.maximum(size, FLOOR * size.max(axis=1, keepdims=True)), FLOOR)
    gradient = np.max(np.max(np.abs(jac - slope), axis=2) / size, axis=1) / GRADIENT
    return value, gradient


@cache
def found(name: str, blocks: int, side_by_side: bool = True, seed: int = 0) -> Found:
    """Draw, solve and judge; the same seed draws the same models."""
    family = FAMILIES[name]
    rng = np.random.default_rng([seed, *name.encode()])
    program = _program(family, side_by_side)
    near = np.arange(LANES) % 2 == 1
    parts = []
    for _ in range(blocks):
        with np.errstate(all="ignore"):
            q = np.stack(family.draw(rng, LANES, near), axis=1)
        y, jac, result, levels = (np.asarray(v) for v in program(q))
        errors = _errors(family, q, (y, jac), _truth(family, q))
        parts.append((q, near, result, levels, *errors))
    return Found(family.names, *(np.concatenate(v) for v in zip(*parts, strict=True)))


def table(results: dict[str, Found]) -> str:
    heads = list(next(iter(results.values())).counts())
    lines = [" ".join([f"{'family':11}", *(f"{h:>14}" for h in heads), "  away, trusted"])]
    for name, f in results.items():
        cells = [f"{v:14d}" for v in f.counts().values()]
        lines.append(" ".join([f"{name:11}", *cells, f"{_useful(f):14.1%}"]))
    return "\n".join(lines)


def _useful(f: Found) -> float:
    return float(np.mean((f.done & (f.level == 0))[~f.near]))


def _judge(name: str, f: Found) -> None:
    print(f"\n{table({name: f})}")
    assert not np.any(f.wrong_value | f.wrong_gradient), f.worst()
    assert _useful(f) >= USEFUL, f"{name}: {_useful(f):.0%} of the models away are TRUSTED"
    alarms, right = int(np.sum(f.false_alarm)), int(np.sum(f.right))
    assert alarms <= ALARMS * right, f"{alarms} of {right} right models are not TRUSTED"


@pytest.mark.parametrize("name", QUICK)
def test_no_model_of_a_few_families_is_silently_wrong(name):
    _judge(name, found(name, 1, side_by_side=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FAMILIES))
def test_no_model_of_any_family_is_silently_wrong(name):
    _judge(name, found(name, BLOCKS))


@pytest.mark.slow
def test_false_alarms_are_rare_over_all_families():
    """After the test above, in the same process, this takes no time."""
    results = {name: found(name, BLOCKS) for name in FAMILIES}
    print(f"\n{table(results)}")
    alarms = sum(int(np.sum(f.false_alarm)) for f in results.values())
    right = sum(int(np.sum(f.right)) for f in results.values())
    assert alarms <= ALARMS * right, f"{alarms} of {right} right models are not TRUSTED"


def test_the_long_search_has_fifty_thousand_models_and_more():
    assert len(FAMILIES) * BLOCKS * LANES >= 50_000


def test_the_closed_forms_agree_with_differences_of_themselves():
    """Central differences of the long double values: a slip in a rule of `duals` would show."""
    rng = np.random.default_rng(1)
    away = np.zeros(8, bool)
    for name, family in FAMILIES.items():
        q = np.stack(family.draw(rng, 8, away), axis=1)
        value, slope = _truth(family, q)
        for j in range(q.shape[1]):
            step = np.zeros(q.shape[1], du.Wide)
            step[j] = 1e-6
            high, low = (_wide(family, q.astype(du.Wide) + s * step) for s in (1, -1))
            difference = np.asarray((high - low) / du.Wide(2e-6), float)
            size = np.max(np.abs(slope), axis=2)
            off = np.where(np.isnan(value), 0.0, np.abs(difference - slope[:, :, j]))
            np.testing.assert_array_less(off, 1e-6 * (1 + size), name)


def _wide(family: Family, q: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.stack([d.value for d in family.truth(du.duals(q))], axis=1)
