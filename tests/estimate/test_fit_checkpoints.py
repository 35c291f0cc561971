"""Long fits: stopping by hand, checkpoints to go on from, logs and progress."""

import json

import numpy as np
import pytest

import saltus
from fits import NOISE, SAMPLES, TRUTH, fitted, scenario
from fits import table as measurements
from saltus.estimate import monitor, objective


def test_stopping_by_hand_returns_the_best_point_so_far(monkeypatch):
    each, calls = objective.Objective._each, []

    def impatient(self, kind, u):
        calls.append(u)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return each(self, kind, u)

    monkeypatch.setattr(objective.Objective, "_each", impatient)
    other = saltus.fit(scenario(), measurements(), noise={"h": NOISE})
    assert other.result == "interrupted"
    assert "resume=" in other.message
    assert other.loss <= min(h["loss"] for h in other.history)
    assert other.loss < other.history[0]["loss"]
    assert other.experiments[0].outputs["h"].t.size == SAMPLES.size


@pytest.mark.parametrize("calls", [3, 8])
@pytest.mark.parametrize("search", ["horizon", "shooting"])
def test_stopping_within_a_stage_returns_a_point_no_worse_than_the_guess(
    monkeypatch, search, calls
):
    iteration = monitor.Monitor.iteration

    def impatient(self, *args):
        iteration(self, *args)
        if len(self.history) == calls:
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor.Monitor, "iteration", impatient)
    other = saltus.fit(scenario(), measurements(), noise={"h": NOISE}, search=search, segments=4)
    assert other.result == "interrupted"
    assert other.loss <= other._objective.value(other._setup.free.initial)


def test_stopping_where_the_guess_cannot_be_simulated_keeps_what_the_stages_found(monkeypatch):
    iteration, zeno = monitor.Monitor.iteration, scenario(p={"e": 0.45, "g": 9.0})

    def impatient(self, *args):
        iteration(self, *args)
        if self.stage == "first 100 %":
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor.Monitor, "iteration", impatient)
    other = saltus.fit(zeno, measurements(), noise={"h": NOISE})
    assert other.result == "interrupted"
    assert other.values == pytest.approx([TRUTH[name] for name in other.names], rel=0.05)


@pytest.mark.parametrize("search", ["horizon", "shooting"])
def test_a_checkpoint_of_a_fit_by_stages_holds_its_result(tmp_path, search):
    file = tmp_path / "fit.npz"
    other = saltus.fit(
        scenario(), measurements(), search=search, segments=4, checkpoint=file
    )  # the noise is estimated, so the loss changes on the way
    u, _ = monitor.read_checkpoint(file, other.names)
    assert np.array_equal(u, other.u)


def test_a_checkpoint_on_the_way_holds_no_point_that_saw_only_a_part(tmp_path):
    file, whole, part = tmp_path / "fit.npz", object(), None
    watch = monitor.Monitor(["a"], progress=False, checkpoint=file)
    saved = lambda: (watch._save(force=True), monitor.read_checkpoint(file, ["a"])[0][0])[1]
    watch.enter("first 12 %", part)
    watch.iteration(np.array([1.0, 9.0]), 0.1, 0.0, 0, 1)  # a node of a segment comes with it
    assert saved() == 1.0  # better than nothing
    watch.enter("all", whole)
    watch.iteration(np.array([2.0]), 5.0, 0.0, 0, 2)
    watch.iteration(np.array([3.0]), 6.0, 0.0, 0, 3)
    assert saved() == 2.0
    watch.enter("first 25 %", part)
    watch.iteration(np.array([4.0]), 0.2, 0.0, 0, 4)
    assert saved() == 2.0
    watch.enter("noise estimated", object())
    watch.iteration(np.array([5.0]), 20.0, 0.0, 0, 5)
    assert saved() == 5.0


def test_a_checkpoint_is_where_a_fit_goes_on(tmp_path):
    options = {"optimiser": "adam", "search": "local", "noise": {"h": NOISE}}
    file = tmp_path / "deep" / "fit.npz"
    run = lambda n, **more: saltus.fit(
        scenario(), measurements(), **options, max_iterations=n, **more
    )
    whole = run(60)
    run(40, checkpoint=file)
    rest = run(20, resume=file)
    assert rest.history[0]["loss"] == pytest.approx(whole.history[40]["loss"], rel=1e-9)
    assert rest.values == pytest.approx(whole.values, rel=1e-9)


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    file = tmp_path / "fit.npz"
    saltus.fit(scenario(), measurements(), noise={"h": NOISE}, checkpoint=file)
    with pytest.raises(ValueError, match="belongs to a fit of e, g"):
        saltus.fit(scenario(), measurements(), free=["e"], resume=file)
    (tmp_path / "other.npz").write_text("not one")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        saltus.fit(scenario(), measurements(), resume=tmp_path / "other.npz")


def test_the_log_is_a_file_of_json_lines(tmp_path):
    file = tmp_path / "log.jsonl"
    other = saltus.fit(scenario(), measurements(), noise={"h": NOISE}, log=file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["loss"] for line in lines] == [h["loss"] for h in other.history]
    assert set(lines[0]) >= {"iteration", "stage", "gradient", "events", "seconds", "u"}


def test_progress_is_drawn_on_request_and_cleared(capsys):
    saltus.fit(scenario(), measurements(), noise={"h": NOISE}, progress=True)
    err = capsys.readouterr().err
    assert "iteration 1, loss" in err
    assert "s left in this stage" in err
    assert "events" in err
    assert err.endswith("\r")


def test_progress_is_silent_where_there_is_no_terminal(capsys):
    saltus.fit(scenario(), measurements(), noise={"h": NOISE})
    assert capsys.readouterr().err == ""


def test_the_memory_of_a_checkpoint_serves_the_first_search_only(tmp_path):
    file = tmp_path / "adam.npz"
    options = {"optimiser": "adam", "search": "local", "max_iterations": 10}
    run = lambda **more: saltus.fit(
        scenario(), measurements(), noise={"h": NOISE}, **options, **more
    )
    run(checkpoint=file)
    other = run(resume=file)
    profile = other.profile("e", points=3)  # which has one number less
    assert profile.losses[1] <= other.loss * (1 + 1e-9)


def test_a_checkpoint_of_adam_may_be_polished_by_least_squares(tmp_path):
    file, noise = tmp_path / "adam.npz", {"h": NOISE}
    saltus.fit(
        scenario(),
        measurements(),
        noise=noise,
        optimiser="adam",
        max_iterations=20,
        checkpoint=file,
    )
    polished = saltus.fit(scenario(), measurements(), noise=noise, resume=file)
    assert polished.values == pytest.approx(fitted().values, rel=1e-6)
