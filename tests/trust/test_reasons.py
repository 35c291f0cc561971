"""The reasons of a certificate: those that explain others stand alone."""

import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant
from saltus.trust.reasons import DISAGREE, REASONS, Evidence, levels_of
from saltus.trust.verdict import UNTRUSTED

KEPT = [
    Event(
        "cross",
        guard=lambda now, p: jnp.sign(now.x["h"] - 1.0),
        reset=lambda now, p: now.replace(x={"h": now.x["h"] + p["e"], "v": now.x["v"]}),
    )
]
SIGNED = HybridSystem(lambda now, p: {"h": -p["g"], "v": now.x["h"]}, events=KEPT)
START, P = Instant(t=0.0, x={"h": 5.0, "v": 0.0}), {"g": 1.4, "e": 0.3}

GOOD = Evidence(
    failed=False, touched=False, watching=True, near=jnp.inf, unseen=False, grazing=0.0,
    promised=1e-6, order=0, saved=False, ended=False, undecided=False, kinked=False, jump=0.0,
    growth=0.0, shift=0.0, condition=0.0, drift=0.0, dot=0.0, leaps=False,
)  # fmt: skip


def reasons(**changes):
    evidence = Evidence(*(jnp.asarray(v) for v in GOOD._replace(**changes)))
    return [REASONS[k] for k in np.flatnonzero(np.asarray(levels_of(evidence)))]


def test_a_guard_with_a_sign_is_the_only_reason_where_it_is_the_cause():
    def loss(p):
        return saltus.solve(SIGNED, START, p, 3.0).final.x["v"]

    cert = saltus.certify(loss, P)
    assert cert.verdict == "UNTRUSTED"
    assert cert.certificates[0].reasons == ("a guard jumps at an event",)
    assert "please report" not in repr(cert)


@pytest.mark.parametrize("dot", [jnp.nan, 1e-3])
def test_sweeps_that_disagree_are_a_reason_only_where_no_other_explains_them(dot):
    assert reasons() == []
    assert reasons(dot=dot) == [DISAGREE]
    assert reasons(dot=dot, kinked=True) == ["the model has a hidden kink", DISAGREE]  # DEGRADED
    for cause in ({"failed": True}, {"unseen": True}, {"growth": jnp.nan}, {"leaps": True}):
        found = reasons(dot=dot, **cause)
        assert len(found) == 1 and DISAGREE not in found


def test_what_is_finite_is_a_reason_beside_a_guard_that_jumps():
    both = ["errors grow along the solution", "a guard jumps at an event"]
    assert reasons(leaps=True, growth=1.0) == both
    assert reasons(leaps=True, growth=jnp.nan, shift=jnp.inf, grazing=jnp.nan) == both[1:]
    assert int(np.max(levels_of(Evidence(*map(jnp.asarray, GOOD._replace(leaps=True)))))) == (
        UNTRUSTED
    )
