"""`saltus demo`: a spring that breaks, fitted to noisy measurements from a poor first guess.

    m v' + c v = -k x + d   until x = 2 from below,   m v' + c v = 0   from then on,   x' = v

The parameter estimation of Andersson and Goppert (2024), section 4.2: the disturbance d is
piecewise constant and known up to noise, the displacement x is measured with noise, and m, k and c
are wanted. Whether and when the spring breaks depends on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..base.text import number, table
from ..estimate import Fit, fit
from ..methods import Tsit5
from ..solution.csv_files import write_columns
from ..solver.scenario import Scenario
from ..system.hybrid import Instant
from ..system.inputs import Steps
from ..system.modes import Exit, Mode, automaton

TRUTH = {"m": 1.0, "k": 2.0, "c": 0.1}
GUESS = {"m": 1.8, "k": 1.0, "c": 0.5}
UNITS = {"t": "s", "x": "m", "v": "m/s", "m": "kg", "k": "N/m", "c": "N s/m"}
END, SAMPLES, PIECES = 5.0, 100, 25
NOISE, NOISE_D = 0.05, 0.05  # of the measured displacement and of the known disturbance

spring = automaton(
    {
        "intact": Mode(
            flow=lambda now, p: {
                "x": now.x["v"],
                "v": (-p["k"] * now.x["x"] + now.u - p["c"] * now.x["v"]) / p["m"],
            },
            exits=[
                Exit(lambda now, p: now.x["x"] - 2.0, to="broken", direction="rising", name="break")
            ],
        ),
        "broken": Mode(flow=lambda now, p: {"x": now.x["v"], "v": -p["c"] * now.x["v"] / p["m"]}),
    },
    inputs=lambda p: Steps(p["times"], p["d"]),
    output=lambda now, p: {"x": now.x["x"]},
    units=UNITS,
)


def scenario(p: dict[str, Any]) -> Scenario:
    """The spring with these parameters, `m`, `k` and `c` to be estimated."""
    start = Instant(t=0.0, x={"x": -1.0, "v": -5.0}, mode="intact")
    method = Tsit5(rtol=1e-9, atol=1e-9)
    return Scenario(spring, start, p, END, method, free=["m", "k", "c"], name="breaking spring")


def measurements(seed: int = 1) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Noisy samples of the displacement, and the disturbance as it is known, with noise."""
    rng = np.random.default_rng(seed)
    d = 2.0 * rng.normal(size=PIECES)
    t = END * np.arange(1, SAMPLES + 1) / SAMPLES
    x = scenario({**TRUTH, **_disturbance(d)}).solve(ts=t).y["x"]
    noisy = np.asarray(x) + NOISE * rng.normal(size=SAMPLES)
    return {"t": t, "x": noisy}, d + NOISE_D * rng.normal(size=PIECES)


def _disturbance(d: np.ndarray) -> dict[str, Any]:
    return {"times": END * jnp.arange(PIECES) / PIECES, "d": jnp.asarray(d)}


def run(seed: int = 1, progress: bool | None = None) -> tuple[Fit, dict[str, np.ndarray]]:
    """Simulate measurements, and fit them from a poor first guess."""
    data, d = measurements(seed)
    model = scenario({**GUESS, **_disturbance(d)})
    return fit(model, data, progress=progress), data


def describe(found: Fit) -> str:
    """The fit in words, with the truth beside it."""
    rows = [
        [name, number(found[name], 5), f"{number(found.low[k], 4)} to {number(found.high[k], 4)}",
         number(TRUTH[name]), number(GUESS[name])]
        for k, name in enumerate(found.names)
    ]  # fmt: skip
    broke = found.experiments[0].solution.events
    when = f"breaks at t = {float(broke.t[0]):.3f} s" if int(broke.count) else "does not break"
    return "\n\n".join(
        [
            f"A spring that breaks at x = 2 m: {SAMPLES} noisy measurements of x, a known "
            f"disturbance in {PIECES} pieces.",
            f"{found.result}. {found.message}",
            table(["", "estimate", "95 % interval", "truth", "first guess"], rows),
            f"The fitted spring {when}. Noise of x: {number(found.noise['x'], 3)} m "
            f"(truth {NOISE} m). {len(found.history)} iterations, {found.seconds:.1f} s, of which "
            f"compilation {found.compile_seconds:.1f} s.",
        ]
    )


def write(found: Fit, data: dict[str, np.ndarray], folder: Path) -> Path:
    """Writes the measurements and the report to `folder`, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_columns(folder / "measurements.csv", {"t [s]": data["t"], "x [m]": data["x"]})
    return found.report(folder / "report.html")
