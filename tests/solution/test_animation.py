"""Motions as moving pictures."""

import shutil
import sys

import jax
import jax.numpy as jnp
import pytest
from PIL import Image

import saltus
from saltus import Event, HybridSystem, Instant, animate

SWING = HybridSystem(
    lambda now, p: {"q": now.x["w"], "w": -9.81 * jnp.sin(now.x["q"])},
    events=[
        Event(
            "wall",
            guard=lambda now, p: now.x["q"] + 0.2,
            reset=lambda now, p: now.replace(x={**now.x, "w": -0.9 * now.x["w"]}),
        )
    ],
    units={"t": "s"},
)


def points(now, p):
    tip = p * jnp.sin(now.x["q"]), -p * jnp.cos(now.x["q"])
    return {"pivot": (0.0, 0.0), "tip": tip, "weight": jnp.stack(tip) + 0.1}


@pytest.fixture(scope="module")
def sol():
    return saltus.solve(SWING, Instant(t=0.0, x={"q": 1.0, "w": 0.0}), None, 1.0)


def test_a_film_has_a_frame_for_every_moment_and_shows_its_events(sol, tmp_path):
    path = animate(
        sol, points, [("pivot", "tip"), ("pivot", "tip", "weight")], tmp_path / "swing.gif",
        p=1.2, fps=10, speed=0.5, trail=["tip"], ground=-1.4, size=(3.0, 2.4), title="Swing",
    )  # fmt: skip
    with Image.open(path) as film:
        assert film.n_frames == 21
        assert film.size == (300, 240)
        assert film.info["duration"] == 100
        frames = [_frame(film, k) for k in range(21)]
    assert frames[0] != frames[5]
    hit = int(float(sol.events.t[0]) / 0.05) + 1
    reds = [sum(_is_accent(c) * n for n, c in f.getcolors(1 << 16)) for f in frames]
    assert reds[hit] > reds[hit - 1]  # rings, and the name of the event


def _frame(film, k):
    film.seek(k)
    return film.convert("RGB")


def _is_accent(colour):
    return colour[0] > 190 and colour[1] < 120 and colour[2] < 130


def test_a_film_needs_ffmpeg_to_be_an_mp4(sol, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="needs ffmpeg"):
        animate(sol, points, path=tmp_path / "swing.mp4", p=1.0, fps=5)


@pytest.mark.parametrize(
    "options, error, words",
    [
        (dict(bars=[("pivot", "tap")]), ValueError, 'bars names "tap"'),
        (dict(trail=["tap"]), ValueError, 'trail names "tap"'),
        (dict(path="swing.avi"), ValueError, "expected a .gif or .mp4"),
        (dict(speed=0.0), ValueError, "expected positive numbers"),
        (dict(speed=1e-6), ValueError, "frames are too many"),
        (dict(points=lambda now, p: (0.0, 0.0)), TypeError, "expected a dict"),
        (dict(points=lambda now, p: {"tip": 0.0}), ValueError, 'point "tip" has shape'),
    ],
    ids=["bars", "trail", "path", "speed", "frames", "points", "place"],
)
def test_mistakes_in_a_film_are_named(sol, options, error, words):
    with pytest.raises(error, match=words):
        animate(sol, **{"points": points, "p": 1.0, "fps": 5, **options})


def test_a_film_is_of_one_motion_with_numbers(sol):
    def traced(q):
        start = Instant(t=0.0, x={"q": q, "w": 0.0})
        animate(saltus.solve(SWING, start, None, 1.0), points, p=1.0)

    with pytest.raises(TypeError, match="a single solution with known numbers"):
        jax.jit(traced)(1.0)
    with pytest.raises(TypeError, match="holds saved outputs only"):
        animate(object(), points)


def test_a_film_without_matplotlib_says_what_to_install(sol, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "saltus\[plot\]"'):
        animate(sol, points, p=1.0, fps=5)
