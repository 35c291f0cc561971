"""Everything that computes with a solution says so if double precision was switched off."""

import pickle

import jax
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, continuous
from saltus.multibody import Mechanism

OFF = r'double precision, which was switched off.*jax.config.update\("jax_enable_x64", True\)'

BOUNCE = Event(
    "bounce",
    guard=lambda now, p: now.x["h"],
    reset=lambda now, p: now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]}),
)
BALL = HybridSystem(lambda now, p: {"h": now.x["v"], "v": -p["g"]}, events=[BOUNCE])
START, P = Instant(t=0.0, x={"h": 5.0, "v": 0.0}), {"g": 9.81, "e": 0.8}
PARTICLE = Mechanism(mass=lambda now, p: {"y": 1.0}, force=lambda now, p: {"y": -1.0})


def ends(p):
    return saltus.solve(BALL, START, p, 2.0).final.x["h"]


@pytest.fixture(scope="module")
def solved():
    sol = saltus.solve(BALL, START, P, 2.0, ts=np.linspace(0.0, 2.0, 5))
    cert, log = sol.certificate, sol.events
    return sol, cert, log, pickle.loads(pickle.dumps(sol))


ENTRIES = {
    **{
        name: lambda sol, *_, name=name: getattr(sol, name)("h")
        for name in ("min", "max", "argmin", "argmax")
    },
    "sol(t)": lambda sol, *_: sol(1.0),
    "sol.at": lambda sol, *_: sol.at(1.0),
    "sol.events": lambda sol, *_: sol.events,
    "log.of": lambda sol, cert, log, _: log.of("bounce"),
    "log.nth": lambda sol, cert, log, _: log.nth(0),
    "sol.course": lambda sol, *_: sol.course(),
    "sol.plot": lambda sol, *_: sol.plot(),
    "sol.save": lambda sol, *_: sol.save("never"),
    "pickle": lambda sol, *_: pickle.dumps(sol),
    "loaded(t)": lambda sol, cert, log, loaded: loaded(1.0),
    "certificate": lambda sol, *_: sol.certificate,
    "trust_radius": lambda sol, cert, *_: cert.trust_radius(P),
    "certify": lambda *_: saltus.certify(lambda p: p["g"] ** 2, P),
    "error_estimate": lambda *_: saltus.error_estimate(ends, P),
    "compare": lambda *_: saltus.compare(ends, P),
    "costates": lambda sol, *_: saltus.costates(lambda s: s.final.x["h"], sol),
    "adjoints": lambda sol, *_: continuous.adjoints(lambda s: s.final.x["h"], sol),
    "hessian": lambda *_: continuous.hessian(ends, P),
    "drift": lambda sol, *_: continuous.drift(sol),
    "saltations": lambda sol, *_: saltus.saltations(sol),
    "linearise at times": lambda sol, *_: saltus.linearise(BALL, sol, P, ts=[0.5, 1.0]),
    "linearise": lambda *_: saltus.linearise(BALL, START, P),
    "equilibrium": lambda *_: saltus.equilibrium(BALL, START, P),
    "orbit": lambda *_: saltus.orbit(BALL, START, P, event="bounce"),
    "animate": lambda sol, *_: saltus.animate(sol, lambda now, p: {"a": (0.0, now.x["h"])}),
    "minimise": lambda *_: saltus.minimise(lambda p: (p["a"] - 1.0) ** 2, {"a": 0.0}),
    "Steps": lambda *_: saltus.Steps([0.0, 1.0], [1.0, 2.0]),
    "io.ramps": lambda *_: saltus.io.ramps({"t": [0.0, 1.0], "u": [1.0, 2.0]}, "u"),
    "Mechanism.start": lambda *_: PARTICLE.start({"y": 0.0}),
    "Mechanism.energy": lambda *_: PARTICLE.energy(START, P),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_without_double_precision_every_entry_gives_the_sentence_of_solve(solved, name):
    with jax.enable_x64(False), pytest.raises(RuntimeError, match=OFF):
        ENTRIES[name](*solved)


def test_without_double_precision_what_is_known_can_still_be_read(solved):
    sol, cert, log, loaded = solved
    with jax.enable_x64(False):
        assert '"bounce"' in repr(sol) and "bounce" in repr(log)
        assert "TRUSTED" in repr(cert) and "success" in repr(loaded)
        assert np.asarray(sol.y["h"]).dtype == float and np.asarray(sol.final.t).dtype == float
        assert sol.error is None and sol.check() is sol
    assert float(sol.max("h")) == 5.0  # and on again
