"""Names that people bring from other tools, and names that do not exist."""

import copy
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, solve
from saltus.base.foreign_names import (
    ARGUMENTS,
    ATTRIBUTES,
    FIT,
    LOG,
    METHODS,
    OPTIMISERS,
    PACKAGE,
    plain,
)

DECAY = HybridSystem(lambda now, p: {"h": -p * now.x["h"]}, units={"t": "s", "h": "m"})
START = Instant(t=0.0, x={"h": 1.0})

# What people write, and what must be in the answer.
SCIPY = {
    "fun": "HybridSystem(", "t_span": "t1", "y0": "Instant(", "t_eval": "ts=",
    "dense_output": "sol(t)", "events": "events=[saltus.Event(", "vectorized": "vmap",
    "args": "solve(system, start, p, t1)", "jac": "sparsity", "first_step": "first_step=",
    "max_step": "max_step=", "rtol": "rtol=", "atol": "atol=", "lband": "sparsity",
    "mxstep": "max_steps=", "tcrit": "TimeEvent", "Dfun": "Jacobian", "full_output": "leave it out",
}  # fmt: skip
DIFFRAX = {
    "terms": "HybridSystem(", "solver": "method=", "t0": "Instant(t=", "dt0": "first_step=",
    "saveat": "ts=", "stepsize_controller": "rtol=", "adjoint": "jax.grad", "event": "Event(",
    "progress_meter": "Ctrl-C", "solver_state": "leave it out",
    "discrete_terminating_event": "Event(",
}  # fmt: skip
TORCH = {"func": "HybridSystem(", "t": "t1", "options": "method=", "event_fn": "Event(",
         "adjoint_params": "jax.grad", "adjoint_rtol": "jax.grad"}  # fmt: skip
MATLAB = {"odefun": "HybridSystem(", "tspan": "t1", "RelTol": "rtol=", "AbsTol": "atol=",
          "MaxStep": "max_step=", "InitialStep": "first_step=", "Events": "Event(",
          "Mass": "mass_matrix", "Jacobian": "sparsity", "NonNegative": "terminal=True",
          "Refine": "sol(t)", "OutputFcn": "output="}  # fmt: skip
JULIA = {"u0": "Instant(", "reltol": "rtol=", "abstol": "atol=", "callback": "Event(",
         "tstops": "TimeEvent", "maxiters": "max_steps=", "sensealg": "jax.grad", "dt": "Fixed(",
         "prob": "HybridSystem(", "alg": "method="}  # fmt: skip
OURS = {"x": "Instant(", "constraint": "HybridSystem(", "mode": "Instant(", "tol": "rtol="}
NAMES = {**SCIPY, **DIFFRAX, **TORCH, **MATLAB, **JULIA, **OURS}


@pytest.mark.parametrize("name", list(NAMES))
def test_an_argument_of_another_solver_is_answered_with_ours(name):
    with pytest.raises(TypeError, match=f"^solve: there is no argument `{name}`. ") as caught:
        solve(DECAY, START, 1.0, 1.0, **{name: None})
    assert NAMES[name] in str(caught.value)


FITTED = {
    "columns": "saltus.Experiment(data, columns=", "t0": "t0=", "maxiter": "max_iterations=",
    "optimizer": "optimiser=", "x0": "first guess is the p", "tol": "tolerance=", "sigma": "noise=",
    "lb": "bounds=", "fun": "saltus.minimise", "callback": "progress=True", "y0": "start=",
}  # fmt: skip


@pytest.mark.parametrize("name", list(FITTED))
def test_an_argument_of_another_fit_is_answered_with_ours(name):
    with pytest.raises(TypeError, match=f"^fit: there is no argument `{name}`. ") as caught:
        saltus.fit(DECAY, {"t": [1.0], "h": [0.5]}, 1.0, start=START, **{name: None})
    assert FITTED[name] in str(caught.value)


def test_the_parameters_of_a_fit_may_stand_without_a_name_but_no_more():
    data = {"t": [1.0], "h": [0.5]}
    with pytest.raises(
        TypeError, match=r"4 arguments without names. Write saltus.fit\(model, data"
    ):
        saltus.fit(DECAY, data, 1.0, START)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="fit: data is missing"):
        saltus.fit(DECAY)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "word, ours",
    [("lm", 'optimiser="lm"'), ("L-BFGS-B", 'optimiser="l-bfgs-b"'), ("trf", 'optimiser="lm"'),
     ("Radau", "method=saltus.Radau5()"), ("RK45", "method=saltus.Tsit5()")],
)  # fmt: skip
def test_a_method_of_a_fit_given_by_name_is_answered_with_ours(word, ours):
    with pytest.raises(TypeError, match=f"^fit: method is '{word}'") as caught:
        saltus.fit(DECAY, {"t": [1.0], "h": [0.5]}, 1.0, start=START, method=word)
    assert ours in str(caught.value)


@pytest.mark.parametrize(
    "name, ours",
    [("minimize", "saltus.minimise(loss, p)"), ("ode45", "saltus.solve("),
     ("solve_ivp", "saltus.solve("), ("odeint", "saltus.solve("), ("diffeqsolve", "saltus.solve("),
     ("Radau", "saltus.Radau5()"), ("curve_fit", "saltus.fit("), ("Evnt", "Event")],
)  # fmt: skip
def test_a_name_of_another_package_is_answered_with_ours(name, ours):
    with pytest.raises(AttributeError, match=f"^saltus has no '{name}'. ") as caught:
        getattr(saltus, name)
    assert ours in str(caught.value)
    assert not hasattr(saltus, "zzzz") and not hasattr(saltus, "__wrapped__")


def test_the_tables_have_no_name_that_is_ours_and_none_twice():
    own = {plain(name) for name in inspect.signature(solve).parameters}
    assert not own & ARGUMENTS.keys()
    assert not {plain(name) for name in inspect.signature(saltus.fit).parameters} & FIT.keys()
    assert not {plain(name) for name in saltus.__all__} & PACKAGE.keys()
    tables = (ARGUMENTS, ATTRIBUTES, FIT, LOG, METHODS, OPTIMISERS, PACKAGE)
    assert all(name == plain(name) for table in tables for name in table)
    sol = {plain(k) for k in dir(saltus.Solution) if not k.startswith("_")}
    fields = {plain(k) for k in saltus.Solution.__dataclass_fields__}
    assert not (sol | fields) & ATTRIBUTES.keys()
    assert not {plain(k) for k in saltus.EventLog.__dataclass_fields__} & LOG.keys()


def test_a_misspelt_argument_is_answered_with_the_nearest_and_a_missing_one_by_name():
    with pytest.raises(TypeError, match=r"no argument `max_event`. The nearest name is max_events"):
        solve(DECAY, START, 1.0, 1.0, max_event=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"no argument `zzzz`. There are system, start, p, t1, ts"):
        solve(DECAY, START, 1.0, 1.0, zzzz=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^solve: t1 is missing. Write saltus.solve\(system, st"):
        solve(DECAY, START, 1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^solve: 5 arguments without names. Write .*by name"):
        solve(DECAY, START, 1.0, 1.0, jnp.linspace(0.0, 1.0, 3))  # type: ignore[call-arg]
    scenario = saltus.Scenario(DECAY, START, 1.0, 1.0)
    with pytest.raises(TypeError, match=r"no argument `saveat`. Write ts="):
        scenario.solve(saveat=[1.0])
    with pytest.raises(TypeError, match=r"no argument `rtol`. Tolerances belong to the method"):
        jax.jit(lambda p: solve(DECAY, START, p, 1.0, rtol=1e-3))(1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "word, ours",
    [("RK45", "Tsit5"), ("BDF", "Radau5"), ("LSODA", "Radau5"), ("DOP853", "Dopri8"),
     ("ode15s", "Radau5"), ("dopri5", "Dopri5"), ("Kvaerno5", "Radau5"), ("ode45", "Tsit5"),
     ("Radau", "Radau5"), ("Rodas5P", "Rodas5P")],
)  # fmt: skip
def test_a_method_of_another_solver_is_answered_with_ours(word, ours):
    with pytest.raises(TypeError, match=rf"method is '{word}'.* Write method=saltus.{ours}\(\)"):
        solve(DECAY, START, 1.0, 1.0, method=word)  # type: ignore[arg-type]
    assert hasattr(saltus, ours)


@pytest.fixture(scope="module")
def sol():
    events = [Event("half", lambda now, p: now.x["h"] - 0.5)]
    system = HybridSystem(DECAY.flow, events=events)
    return solve(system, START, 1.0, 1.0, ts=jnp.linspace(0.0, 1.0, 5))


ASKED = {
    "ys": "sol.y", "ts": "sol.t", "y_events": "sol.events", "t_events": "sol.events",
    "success": "sol.error", "message": "sol.error", "status": "sol.result", "nfev": "sol.stats",
    "sol": "sol(t)", "u": "sol.y", "retcode": "sol.result", "te": "sol.events", "x": "sol.at(t)",
    "interpolation": "sol(t)", "event_mask": "sol.events", "t1": "sol.last.t",
    "integra": "integral",
}  # fmt: skip


@pytest.mark.parametrize("name", list(ASKED))
def test_an_attribute_of_another_solution_is_answered_with_ours(sol, name):
    with pytest.raises(AttributeError, match=f"^a solution has no attribute '{name}'. ") as caught:
        getattr(sol, name)
    assert ASKED[name] in str(caught.value)


def test_solutions_and_logs_without_an_attribute_stay_ordinary_objects(sol, tmp_path):
    assert not hasattr(sol, "nonsense") and getattr(sol, "_repr_html_", None) is None
    with pytest.raises(AttributeError, match=r"^an event log has no attribute 'times'. log.t has"):
        _ = sol.events.times
    with pytest.raises(TypeError, match=r'sol\["h"\]: .*Write sol.y\["h"\]'):
        sol["h"]
    copied = jax.tree.map(lambda v: v, sol)
    assert copied.final.x["h"] == sol.final.x["h"] and copy.copy(sol).t is sol.t
    loaded = saltus.Solution.load(sol.save(tmp_path / "file"))
    with pytest.raises(AttributeError, match=r"no attribute 'ys'. sol.y"):
        _ = loaded.ys


def test_a_time_beyond_the_end_is_an_error_and_nan_inside_jit(sol, tmp_path):
    loaded = saltus.Solution.load(sol.save(tmp_path / "file"))
    for read in (sol, sol.at, loaded):
        for bad in (1.5, -0.1, [0.5, 2.0], float("nan")):
            with pytest.raises(ValueError, match=r"^sol\(.*covers t = 0 to t = 1. Use"):
                read(jnp.asarray(bad))
    inside = jax.jit(lambda p, t: solve(DECAY, START, p, 1.0)(t)["h"])
    assert np.isnan(inside(1.0, 1.5)) and abs(inside(1.0, 1.0) - np.exp(-1.0)) < 1e-7
    ts = np.linspace(0.0, float(sol.last.t), 77)
    np.testing.assert_allclose(sol(ts)["h"], np.exp(-ts), rtol=1e-7)


def test_a_time_beyond_the_end_says_why_a_solve_ended_early():
    stop = Event("half", lambda now, p: now.x["h"] - 0.5, terminal=True)
    system = HybridSystem(DECAY.flow, events=[stop])
    ended = solve(system, START, 1.0, 2.0)
    with pytest.raises(ValueError, match=r"to t = 0.69314718\d* \(terminated\)"):
        ended(1.0)


@pytest.mark.slow
def test_in_a_batch_a_time_that_one_solution_has_reached_is_nan_in_the_others():
    stop = Event("half", lambda now, p: now.x["h"] - 0.5, terminal=True)
    system = HybridSystem(DECAY.flow, events=[stop])
    batch = jax.vmap(lambda p: solve(system, START, p, 2.0))(jnp.array([1.0, 2.0]))
    h = batch(0.5)["h"]
    assert abs(h[0] - np.exp(-0.5)) < 1e-6 and np.isnan(h[1])
    with pytest.raises(ValueError, match="covers t = 0"):
        batch(1.9)


def test_units_of_names_that_do_not_exist_are_refused_with_the_nearest():
    def run(units, **parts):
        system = HybridSystem(lambda now, p: {"h": -p["rate"] * now.x["h"]}, units=units, **parts)
        return solve(system, START, {"rate": 1.0, "net": {"w": jnp.ones(3)}}, 0.1)

    with pytest.raises(ValueError, match=r'units: no number is called "hh". Did you mean h\?'):
        run({"t": "s", "hh": "m"})
    with pytest.raises(ValueError, match=r'units: no number is called "height".* There are t, h,'):
        run({"height": "m"})
    with pytest.raises(ValueError, match=r'called "z\[0\]"'):
        run({"z[0]": "m"})
    known = {"t": "s", "h": "m", "rate": "1/s", "net.w": "V", "w": "V", "w[2]": "V", "cost": "J"}
    run(known, rate=lambda now, p: {"cost": now.x["h"]})
    run({"double": "m", "u": "V"}, output=lambda now, p: {"double": 2 * now.x["h"]},
        inputs=saltus.Steps([0.0], [1.0]))  # fmt: skip


def test_the_package_lists_its_public_names_only():
    assert set(dir(saltus)) == {*saltus.__all__, "__version__"}
    assert all(hasattr(saltus, name) for name in dir(saltus))
