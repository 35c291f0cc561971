"""Animations of planar mechanisms: points, bars and trails. Needs matplotlib."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base.extras import need
from ..base.names import unit_of
from ..base.text import number
from ..base.tracing import is_traced
from ..base.types import Params
from ..system.hybrid import Instant, called
from .description import event_name
from .plotting import COLOURS, LOOK

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.animation import AbstractMovieWriter
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    from .solution import Solution

INK = "#2b3137"
EVENT_ACCENTS = ["#d1495b", "#e39b2d", "#7a5195", "#2e8b6f"]  # colours
GROUND = "#8a94a0"
MARGIN_SHARE = 0.08  # of the size of the motion
FLASH_SECONDS = 0.35  # of the animation, during which an event is shown
FADE_SECONDS = 1.5  # of the animation, after which a trail is faint
DPI = 100
TRAIL_POINTS_PER_FRAME = 8
TRAIL_SHADES = 14
MAX_FRAMES = 3000


class Flash(NamedTuple):
    """An event: its time, its name and number, and the positions of the points it strikes."""

    t: float
    name: str
    kind: int
    places: np.ndarray


class Film(NamedTuple):
    """What the animation shows: the times of the frames, the points there, and the events."""

    times: np.ndarray  # of the frames
    points: dict[str, np.ndarray]  # (frames, 2)
    fine: np.ndarray  # times closer together, with both sides of every event
    paths: dict[str, np.ndarray]  # the points at the times `fine`
    events: list[Flash]
    unit: str  # of time


def animate(
    sol: Solution,
    points: Callable,
    bars: Sequence[Sequence[str]] = (),
    path: str | PathLike[str] = "motion.gif",
    *,
    p: Params = None,
    fps: float = 25,
    speed: float = 1.0,
    trail: Sequence[str] = (),
    ground: float | None = None,
    size: tuple[float, float] = (5.6, 4.2),
    title: str | None = None,
) -> Path:
    """Write the motion of a planar mechanism to a GIF (or to an `.mp4` if ffmpeg is installed).

    `sol` is the solution to show, and `points(now, p)` returns the positions of its points by name,
    `{name: (x, y)}`; `p` is passed on to it. Each entry of `bars` names the points that a bar
    joins; with three or more points the bar is drawn as a filled plate. `path` is the file to
    write, and is returned. The animation has `fps` frames per second, and one second of it shows
    `speed` seconds of the motion. `trail` names the points whose path is drawn, `ground` is the
    height of a floor. `size` is that of the figure in inches, and `title` its heading.
    """
    path = Path(path)
    _check(sol, path, fps, speed)
    film = _film(sol, points, p, fps, speed)
    _check_names(film, [n for bar in bars for n in bar], "bars")
    _check_names(film, trail, "trail")
    plt = need("matplotlib.pyplot", "plot", "animate")
    with plt.rc_context(LOOK):
        figure = plt.figure(figsize=size)
        stage = _Stage(figure, film, bars, trail, ground, speed, title or "")
        writer = _writer(path, fps)
        with writer.saving(figure, str(path), DPI):
            for k in range(len(film.times)):
                stage.show(k)
                writer.grab_frame()
                _progress(k + 1, len(film.times), path)
        plt.close(figure)
    return path


# -- what the animation shows ---------------------------------------------------------------------
def _film(sol: Solution, points: Callable, p: Params, fps: float, speed: float) -> Film:
    first, last = sorted((float(sol.start), float(sol.last.t)))
    frames = max(2, int(np.floor((last - first) / speed * fps + 1e-9)) + 1)
    if frames > MAX_FRAMES:
        raise ValueError(
            f"animate: {frames} frames are too many. Raise speed, say speed={speed * 10:g}, or "
            "lower fps."
        )
    times = np.minimum(first + speed / fps * np.arange(frames), last)
    flashes = _flashes(sol, points, p, 0.01 * speed / fps)
    happened = [e.t for e in flashes]
    fine = np.sort(
        np.concatenate([np.linspace(first, last, TRAIL_POINTS_PER_FRAME * frames), happened])
    )
    paths = _places(sol.at(fine, "left"), points, p)
    return Film(
        times, _places(sol.at(times), points, p), fine, paths, flashes, unit_of(sol.units, "t")
    )


def _places(at: Instant, points: Callable, p: Params) -> dict[str, np.ndarray]:
    """Where each point is at several instants."""
    found = jax.vmap(lambda now: _placed(points, now, p))(at)
    return {name: np.asarray(v) for name, v in found.items()}


def _flashes(sol: Solution, points: Callable, p: Params, moment: float) -> list[Flash]:
    """The events; an event strikes the points whose velocity it changes."""
    log = sol.events
    count = int(log.count)
    if not count:
        return []
    t = np.asarray(log.t)[:count]
    low, high = sorted((float(sol.start), float(sol.last.t)))
    sides = [(-moment, "left"), (0.0, "left"), (0.0, "right"), (moment, "right")]
    seen = [_places(sol.at(np.clip(t + d, low, high), side), points, p) for d, side in sides]
    names = list(seen[0])
    where = [np.stack([v[name] for name in names], axis=1) for v in seen]  # (events, points, 2)
    before, after = (where[1] - where[0]) / moment, (where[3] - where[2]) / moment
    kicks = np.nan_to_num(np.linalg.norm(after - before, axis=2))
    least = 1e-2 * np.max(np.abs(np.nan_to_num([before, after])), initial=1e-12)
    out = []
    for k in range(count):
        struck = (kicks[k] > 0.5 * np.max(kicks[k])) & (kicks[k] > least)
        out.append(Flash(float(t[k]), event_name(log, k), int(log.which[k]), where[1][k][struck]))
    return out


def _placed(points: Callable, now: Instant, p: Params) -> dict[str, Any]:
    found = called("points", points, now, p)
    if not isinstance(found, Mapping) or not found:
        raise TypeError(
            f"animate: points returned {found!r}, expected a dict of names and positions. Write "
            'points=lambda now, p: {"ball": (now.x["x"], now.x["y"])}.'
        )
    out = {name: jnp.asarray(place, jnp.float64) for name, place in found.items()}
    for name, place in out.items():
        if place.shape != (2,):
            raise ValueError(
                f'animate: point "{name}" has shape {place.shape}, expected a position (x, y).'
            )
    return out


def _check(sol: Solution, path: Path, fps: float, speed: float) -> None:
    if not hasattr(sol, "at"):
        raise TypeError(
            f"animate: {type(sol).__name__} holds saved outputs only, but points are computed from "
            "states. Pass the solution that saltus.solve returned."
        )
    if is_traced((sol.t, sol.result, sol.y)) or np.ndim(sol.result):
        raise TypeError(
            "animate: expected a single solution with known numbers, not a batch or a traced one. "
            "Write animate(sol[0], ...), outside of jit and grad."
        )
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise ValueError(f'animate: path is "{path}", expected a .gif or .mp4. Write "motion.gif".')
    if not fps > 0 or not speed > 0:
        raise ValueError(f"animate: fps is {fps} and speed is {speed}, expected positive numbers.")


def _check_names(film: Film, names: Sequence[str], what: str) -> None:
    for name in names:
        if name not in film.points:
            raise ValueError(
                f'animate: {what} names "{name}", but the points are {list(film.points)}.'
            )


def _writer(path: Path, fps: float) -> AbstractMovieWriter:
    animation = need("matplotlib.animation", "plot", "animate")
    if path.suffix.lower() == ".gif":
        return animation.PillowWriter(fps=fps)
    if shutil.which("ffmpeg") is None:
        raise RuntimeError(
            f'animate: "{path.name}" needs ffmpeg, which is not on the path. Install it, or write '
            f'"{path.with_suffix(".gif").name}".'
        )
    return animation.FFMpegWriter(fps=fps, extra_args=["-pix_fmt", "yuv420p"])


def _progress(done: int, total: int, path: Path) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{path.name}: frame {done} of {total}", end=end, file=sys.stderr, flush=True)


# -- the picture ----------------------------------------------------------------------------------
class _Stage:
    """The axes and everything on them; `show(k)` moves it to frame `k`."""

    def __init__(
        self, figure: Figure, film: Film, bars: Sequence, trail: Sequence, ground: float | None,
        speed: float, title: str,
    ):  # fmt: skip
        self.film = film
        self.fade, self.hold = FADE_SECONDS * speed, FLASH_SECONDS * speed
        self.axis = figure.add_subplot()
        self.axis.set_title(title)
        self.clock = self.axis.set_title("t", loc="right", color=INK)
        self._limits(figure, ground)
        self.trails = [self._trail(name, k) for k, name in enumerate(trail)]
        self.bars = [self._bar(bar, k) for k, bar in enumerate(bars)]
        joints = list(dict.fromkeys(n for bar in bars if len(bar) == 2 for n in bar))
        loose = [n for n in film.points if not any(n in bar for bar in bars)]
        style: dict[str, Any] = dict(ls="none", marker="o", zorder=5)
        self.joints = (
            joints,
            self.axis.plot([], [], ms=6, mfc="white", mec=INK, mew=1.4, **style)[0],
        )
        self.loose = loose, self.axis.plot([], [], ms=11, mfc=COLOURS[1], mec="white", **style)[0]
        self.note = self.axis.text(
            0.02, 0.965, "", transform=self.axis.transAxes, va="top", weight="bold", fontsize=10
        )
        self.rings = self.axis.scatter([], [], facecolors="none", linewidths=2.2, zorder=4)

    def _limits(self, figure: Figure, ground: float | None) -> None:
        """Limits that hold the whole motion, with the same scale in both directions."""
        every = np.concatenate(list(self.film.paths.values()))
        every = every[np.all(np.isfinite(every), axis=1)]
        low, high = every.min(axis=0), every.max(axis=0)
        if ground is not None:
            low[1], high[1] = min(low[1], ground), max(high[1], ground)
        span = np.maximum(high - low, 1e-9)
        self.axis.set(xlim=(low[0], low[0] + span[0]), ylim=(low[1], low[1] + span[1]))
        figure.canvas.draw()  # computes the layout, which is then kept
        figure.set_layout_engine("none")
        box = self.axis.get_window_extent()
        room = np.array([box.width, box.height])
        whole = (1 + 2 * MARGIN_SHARE) * np.max(span / room) * room
        left, bottom = (low + high - whole) / 2
        if ground is not None:
            bottom = max(bottom, low[1] - 1.5 * MARGIN_SHARE * whole[1])  # spare room goes on top
            self.axis.axhspan(bottom, ground, facecolor="#eef0f2", edgecolor="none", zorder=0.5)
            self.axis.axhline(ground, color=GROUND, lw=1.6, zorder=0.6)
        self.axis.set(xlim=(left, left + whole[0]), ylim=(bottom, bottom + whole[1]))

    def _trail(self, name: str, k: int) -> tuple:
        collections = need("matplotlib.collections", "plot", "animate")
        line = collections.LineCollection([], linewidths=1.6, zorder=2, capstyle="butt")
        self.axis.add_collection(line, autolim=False)
        return name, line, COLOURS[(k + 1) % len(COLOURS)]

    def _bar(self, bar: Sequence[str], k: int) -> tuple:
        colour = COLOURS[k % len(COLOURS)]
        if len(bar) > 2:
            patches = need("matplotlib.patches", "plot", "animate")
            plate = patches.Polygon(
                np.zeros((len(bar), 2)), closed=True, facecolor=colour, edgecolor=colour,
                alpha=0.75, lw=2.0, joinstyle="round", zorder=3,
            )  # fmt: skip
            return bar, self.axis.add_patch(plate)
        return bar, self.axis.plot([], [], color=colour, lw=4.5, zorder=3)[0]

    def show(self, k: int) -> None:
        """Frame `k`."""
        places = self.film.points
        for bar, drawn in self.bars:
            corners = np.array([places[n][k] for n in bar])
            drawn.set_xy(corners) if len(bar) > 2 else drawn.set_data(*corners.T)
        for names, drawn in (self.joints, self.loose):
            drawn.set_data(*np.array([places[n][k] for n in names]).reshape(-1, 2).T)
        for name, line, colour in self.trails:
            self._draw_trail(line, name, k, colour)
        self._draw_flash(self.film.times[k])

    def _draw_trail(self, line: LineCollection, name: str, k: int, colour: str) -> None:
        """The path so far, the older the fainter."""
        t = self.film.times[k]
        past = self.film.fine <= t
        places = np.vstack([self.film.paths[name][past], self.film.points[name][k]])
        age = np.append(t - self.film.fine[past], 0.0) / self.fade
        shade = np.minimum(TRAIL_SHADES - 1, (TRAIL_SHADES * age).astype(int))
        cuts = np.flatnonzero(np.diff(shade)) + 1
        pieces = np.split(np.arange(len(places)), cuts)
        line.set_segments([places[rows[0] : rows[-1] + 2] for rows in pieces])
        faint = [max(0.18, float(0.9 * (1 - shade[rows[0]] / TRAIL_SHADES))) for rows in pieces]
        line.set_color([(colour, alpha) for alpha in faint])

    def _draw_flash(self, t: float) -> None:
        """The time, and the last event for a moment: its name, and rings that grow and fade."""
        self.clock.set_text(f"t = {t:.2f} {self.film.unit}".rstrip())
        past = [e for e in self.film.events if 0 <= t - e.t < self.hold]
        last = f"● {past[-1].name} at {number(past[-1].t, 4)} {self.film.unit}" if past else ""
        self.note.set_text(last.rstrip())
        rings = [(place, e) for e in past for place in e.places]
        self.rings.set_offsets(np.array([place for place, _ in rings]).reshape(-1, 2))
        ages = [(t - e.t) / self.hold for _, e in rings]
        colours = [EVENT_ACCENTS[e.kind % len(EVENT_ACCENTS)] for _, e in rings]
        self.rings.set_sizes([150 + 1100 * age for age in ages])
        self.rings.set_edgecolor([(c, 1 - a) for c, a in zip(colours, ages, strict=True)])
        if past:
            fading = 1 - (t - past[-1].t) / self.hold
            self.note.set_color(
                (EVENT_ACCENTS[past[-1].kind % len(EVENT_ACCENTS)], min(1.0, 2 * fading))
            )
