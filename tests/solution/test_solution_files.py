"""Solutions in files: both sides of every jump, solves backwards in time, integrals."""

import jax
import numpy as np
import pytest

import saltus
from saltus import Event, HybridSystem, Instant, Solution


def same_as_in_a_file(sol, folder, atol):
    """Both sides of the dense output at 50 times, at the events, and at both ends."""
    read = Solution.load(sol.save(folder / "solution"))
    grid = np.linspace(float(sol.start), float(sol.last.t), 50)
    ts = np.concatenate([grid, np.asarray(sol.events.t)])
    for side in ("left", "right"):
        for a, b in zip(
            jax.tree.leaves(sol(ts, side)), jax.tree.leaves(read(ts, side)), strict=True
        ):
            np.testing.assert_allclose(b, a, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("t0", [0.0, 100.0])
def test_a_file_of_an_algebraic_system_with_events_has_both_sides_of_them(t0, tmp_path):
    """A hopper: the force of its leg (z) appears when it lands, with a jump."""
    force = lambda now: now.d["down"] * (15.0 - 400.0 * now.x["h"])
    system = HybridSystem(
        flow=lambda now, p: {"h": now.x["v"], "v": now.z["f"] - 9.81},
        constraint=lambda now, p: {"leg": now.z["f"] + 1e-4 * now.z["f"] ** 3 - force(now)},
        events=[
            Event(
                "land", lambda now, p: now.x["h"], reset=lambda now, p: now.replace(d={"down": 1.0})
            ),
            Event(
                "leave",
                lambda now, p: now.x["h"],
                direction="rising",
                reset=lambda now, p: now.replace(d={"down": 0.0}),
            ),
        ],
        output=lambda now, p: {**now.x, **now.z, **now.d},
    )
    start = Instant(t=t0, x={"h": 0.1, "v": 0.0}, z={"f": 0.0}, d={"down": 0.0})
    sol = saltus.solve(system, start, None, t0 + 1.0, method=saltus.Radau5())
    assert sol.events.count >= 2
    same_as_in_a_file(sol, tmp_path, 1e-9)


@pytest.mark.parametrize("where", ["start", "end", "end by a terminal event"])
def test_a_jump_at_the_edge_of_a_solve_is_kept_with_both_sides(where, tmp_path):
    kick = Event(
        "kick",
        guard=lambda now, p: now.x["h"] - 1.0,
        reset=lambda now, p: now.replace(x={"h": now.x["h"] + 1.0}),
        when="level",
        terminal=where == "end by a terminal event",
    )
    system = HybridSystem(lambda now, p: {"h": -1.0}, events=[kick])
    h0, t1 = (0.5, 0.25) if where == "start" else (2.0, 1.0)
    sol = saltus.solve(system, Instant(t=0.0, x={"h": h0}), None, t1)
    assert sol.events.count == 1 and sol.events.t[0] == (0.0 if where == "start" else 1.0)
    t = sol.events.t[0]
    assert abs(sol(t)["h"] - sol(t, "left")["h"] - 1.0) < 1e-12
    same_as_in_a_file(sol, tmp_path, 1e-12)


def test_a_solve_backwards_in_time_is_kept_too(tmp_path):
    decay = HybridSystem(lambda now, p: -now.x)
    sol = saltus.solve(decay, Instant(t=1.0, x=1.0), None, 0.0)
    read = Solution.load(sol.save(tmp_path / "decay.npz"))
    ts = np.linspace(0.0, 1.0, 11)
    assert np.allclose(read(ts), np.exp(1.0 - ts), atol=1e-7)


def test_loading_something_else_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        Solution.load(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("not a solution")
    with pytest.raises(ValueError, match=r"not a solution written by sol\.save"):
        Solution.load(tmp_path / "text.npz")
    np.savez(tmp_path / "arrays.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match=r"not a solution written by sol\.save"):
        Solution.load(tmp_path / "arrays.npz")


def test_integrals_are_known_at_every_saved_time(tmp_path):
    system = HybridSystem(
        lambda now, p: {"x": 1.0 + 0 * now.x["x"]},
        rate=lambda now, p: {"area": now.x["x"]},
        events=[
            Event(
                "drop",
                lambda now, p: now.x["x"] - 1.0,
                reset=lambda now, p: now.replace(x={"x": 0.0 * now.x["x"]}),
                direction="rising",
            )
        ],
    )
    ts = np.array([0.5, 1.0, 1.5, 2.5])
    for method in (saltus.Tsit5(), saltus.Radau5()):
        start = Instant(t=0.0, x={"x": 0.0})
        sol = saltus.solve(system, start, None, 3.0, ts=ts, method=method)
        assert np.allclose(sol.integrals["area"], [0.125, 0.5, 0.625, 1.125], atol=1e-9)
        loaded = saltus.Solution.load(sol.save(tmp_path / "a"))
        assert np.array_equal(loaded.integrals["area"], sol.integrals["area"])
    assert saltus.solve(system, start, None, 3.0).integrals["area"] == pytest.approx(1.5, abs=1e-9)


def test_a_loaded_solution_inside_a_transformation_says_that_it_is_plain_numbers(tmp_path):
    system = HybridSystem(lambda now, p: {"h": -now.x["h"]})
    sol = saltus.solve(system, Instant(t=0.0, x={"h": 1.0}), None, 2.0)
    read = Solution.load(sol.save(tmp_path / "solution"))
    for apply in (jax.grad, jax.jit, jax.jacfwd):
        with pytest.raises(TypeError, match=r"sol\(t\): a solution that was saved.*Solve again"):
            apply(lambda t: read(t)["h"])(1.5)
    with pytest.raises(TypeError, match="saved or pickled is plain numbers"):
        jax.vmap(lambda t: read([t, 0.5])["h"])(np.array([1.0, 1.5]))
    for name in ("max", "argmax", "argmin"):
        with pytest.raises(AttributeError, match=f"sol.{name}: .* no longer has its model"):
            getattr(read, name)("h")
