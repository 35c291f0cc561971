"""Monitoring of long searches: history, a progress bar, a log, checkpoints, and interrupts."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


@contextlib.contextmanager
def said(text: str, progress: bool | None = None) -> Iterator[None]:
    """Shows `text` on the terminal while the code inside runs (or as `progress` says)."""
    shown = sys.stderr.isatty() if progress is None else progress
    if shown:
        print(f"{text} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\033[K" if sys.stderr.isatty() else "\n", end="", file=sys.stderr, flush=True)


class Monitor:
    """Called once per iteration; keeps the history, and shows, logs and saves it.

    `names` are those of the free numbers. By default the bar is drawn on a terminal only
    (`progress`); `total` is how many iterations a stage may have. `log` is a file of JSON lines;
    `checkpoint` a file from which `resume=` continues.
    """

    def __init__(
        self,
        names: list[str],
        progress: bool | None = None,
        log: str | Path | None = None,
        checkpoint: str | Path | None = None,
        total: int = 0,
    ):
        self.names = names
        self.history: list[dict[str, Any]] = []
        self.path: list[np.ndarray] = []  # where each iteration ended
        self.stage = "fit"
        self.total = total
        self.clock = time.perf_counter()
        self._began = (0, 0.0)  # iterations and seconds before this stage
        self.saved = 0.0
        self.bar = sys.stderr.isatty() if progress is None else bool(progress)
        self.log = None if log is None else Path(log)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.best: tuple[float, np.ndarray] | None = None  # for the present loss
        self.latest: np.ndarray | None = None
        self._loss: Any = None
        self._whole = True
        self.extra: dict[str, np.ndarray] = {}
        self._line = 0
        for path in (self.log, self.checkpoint):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        if self.log is not None:
            self.log.write_text("")

    def iteration(
        self, u: np.ndarray, loss: float, gradient: float, events: int, evaluations: int
    ) -> None:
        """Record an iteration that ended at `u`."""
        entry = {
            "iteration": len(self.history),
            "stage": self.stage,
            "loss": float(loss),
            "gradient": float(gradient),
            "events": int(events),
            "evaluations": int(evaluations),
            "seconds": time.perf_counter() - self.clock,
        }
        self.history.append(entry)
        self.latest = np.array(u[: len(self.names)], dtype=float)  # multiple shooting has more
        self.path.append(self.latest)
        if self._whole and np.isfinite(loss) and (self.best is None or loss < self.best[0]):
            self.best = (float(loss), self.latest)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps({**entry, "u": np.asarray(u).tolist()[:64]}) + "\n")
        self._draw(entry)
        self._save()

    def enter(self, stage: str, loss: object = None) -> None:
        """Start the stage called `stage`, which minimises `loss`. Values of different losses are
        not compared. Without `loss` the stage uses only a part of the data, and none of its points
        counts as the best."""
        self.stage, self.extra, self._whole = stage, {}, loss is not None
        self._began = (len(self.history), time.perf_counter() - self.clock)
        if self._whole and loss is not self._loss:
            self.best, self._loss = None, loss

    def end(self, u: np.ndarray, loss: float) -> None:
        """Record the result, for the last checkpoint."""
        self.best = (float(loss), np.array(u, dtype=float))

    def close(self) -> None:
        """Clear the bar and write the last checkpoint."""
        if self._line:
            sys.stderr.write("\r" + " " * self._line + "\r")
            sys.stderr.flush()
            self._line = 0
        self._save(force=True)

    def _draw(self, entry: dict) -> None:
        if not self.bar:
            return
        done, seconds = entry["iteration"] + 1, entry["seconds"]
        text = (
            f"{entry['stage']}: iteration {done}, loss {entry['loss']:.4g}, "
            f"gradient {entry['gradient']:.1e}, {entry['events']} events, {seconds:.0f} s"
        )
        if self.total:
            own = done - self._began[0]
            left = max(self.total - own, 0) * (seconds - self._began[1]) / own
            full = min(20, 20 * own // self.total)
            bar = f"[{'#' * full}{'.' * (20 - full)}]"
            text = f"{bar} {text}, at most {left:.0f} s left in this stage"
        sys.stderr.write("\r" + text.ljust(self._line))
        sys.stderr.flush()
        self._line = len(text)

    def _save(self, force: bool = False) -> None:
        loss, u = (np.inf, self.latest) if self.best is None else self.best
        if self.checkpoint is None or u is None:
            return
        now = time.perf_counter()
        if not force and now - self.saved < 2.0 and self.saved:
            return
        self.saved = now
        header = {"made by": "saltus", "names": self.names, "loss": loss}
        content: dict[str, Any] = {f"extra_{k}": v for k, v in self.extra.items()}
        draft = self.checkpoint.with_name(self.checkpoint.name + ".part")
        with draft.open("wb") as file:
            np.savez(file, header=json.dumps(header), best=u, **content)
        os.replace(draft, self.checkpoint)  # an interrupted write leaves the old file


def read_checkpoint(path: str | Path, names: list[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The best vector of a checkpoint, and the optimiser's state in it."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"resume: there is no checkpoint {path}.")
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            best = file["best"]
            extra = {k[6:]: file[k] for k in file.files if k.startswith("extra_")}
    except (ValueError, KeyError, OSError) as error:
        raise ValueError(f"resume: {path} is not a checkpoint of a fit ({error}).") from error
    if header["names"] != names:
        raise ValueError(
            f"resume: {path} belongs to a fit of {', '.join(header['names'][:8])}, but this is a "
            f"fit of {', '.join(names[:8])}."
        )
    return best, extra
