"""The sections of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.names import label, unit_of
from ...base.text import number
from . import event_figure, fit_figure, loss_figure, markup, residual_figure, uncertainty_figure
from .markup import Cell, bullets, figures, paragraph, section, table, text
from .style import counted, listed

if TYPE_CHECKING:
    from ..result import Fit
    from .figures import Picture

MOST_ROWS = 40  # of a table
MOST_SENTENCES = 5
TOP_NUMBERS = 6  # at the top of the page
WORDS = {
    "converged": "Converged",
    "suspect": "A minimum, but the data are not explained",
    "out_of_iterations": "Out of iterations",
    "stalled": "Stalled",
    "interrupted": "Interrupted",
    "failed": "Failed",
}


# -- the top --------------------------------------------------------------------------------------
def verdict(fit: Fit) -> tuple[str, str]:
    """The result in words, and its rating: `good`, `fair` or `bad`."""
    words = WORDS.get(fit.result, str(fit.result).replace("_", " ").capitalize())
    if fit.result == "failed" or not np.isfinite(fit.loss):
        return words, "bad"
    doubts = []
    if any(fit.at_bound):
        doubts.append(f"{listed(_held(fit)) if sum(fit.at_bound) <= 3 else 'numbers'} at a bound")
    if fit.undetermined:
        few = len(fit.undetermined) <= 3
        which = (
            listed(fit.undetermined)
            if few
            else f"{len(fit.undetermined)} of {len(fit.names)} numbers"
        )
        return f"{which} not determined ({words.lower()})", "fair"
    if fit.weak:
        doubts.append("the data do not determine everything")
    if doubts:
        words += (", but " if fit.ok else "; ") + listed(doubts)
    return words, "good" if fit.ok and not doubts else "fair"


def _held(fit: Fit) -> list[str]:
    return [name for name, at in zip(fit.names, fit.at_bound, strict=True) if at]


def summary(fit: Fit) -> str:
    """What was done, in a sentence or two."""
    outputs = residual_figure.output_names(fit)
    samples = sum(s.t.size for e in fit.experiments for s in e.outputs.values())
    events = sum(len(m.observed) for e in fit.experiments for m in e.events.values())
    data = []
    if samples:
        data.append(f"{counted(samples, 'sample')} of {_some(outputs, 'output')}")
    if events:
        data.append(f"{counted(events, 'event time')}")
    runs, steps = len(fit.experiments), len(fit.history)
    words = (
        f"The fit of {_some(fit.names, 'number')} to {' and '.join(data)}, from "
        f"{counted(runs, 'experiment')}, took {counted(steps, 'iteration')}."
    )
    if fit.weak and np.isfinite(fit.loss):
        words += f" The data hardly determine {counted(len(fit.weak), 'combination')} of them."
    return words


def _some(names: list[str], what: str) -> str:
    """Names if they are few, their number if they are many."""
    return listed(names) if len(names) <= 6 else f"{len(names)} {what}s"


def answer(fit: Fit) -> str:
    """The main result: the first few numbers with their intervals."""
    rows = []
    for k, name in enumerate(fit.names[:TOP_NUMBERS]):
        estimate, interval, unit, remark = (_estimate(fit, k)[j] for j in (1, 2, 3, 7))
        words = f"95 %: {interval.inside}" if not remark else remark.inside
        value = f"{estimate.inside} {text(unit)}".strip()
        rows.append(
            f"<li><span><code>{text(name)}</code> = <b>{value}</b></span> <i>{words}</i></li>\n"
        )
    left = len(fit.names) - len(rows)
    more = f'<li><a href="#estimates">and {left:,} more</a></li>\n' if left > 0 else ""
    return f'<ul class="answer">\n{"".join(rows)}{more}</ul>\n'


def tiles(fit: Fit, seconds: float = 0.0) -> str:
    """Further key numbers; `seconds` is the time spent on the figures of the report."""
    known = [v for v in fit.noise.items() if np.isfinite(v[1])]
    shown = [
        ("loss", number(float(fit.loss), 5)),
        ("free numbers", f"{len(fit.names)}"),
        ("iterations", f"{len(fit.history)}"),
        ("evaluations", f"{fit.evaluations:,}"),
        ("time in all", f"{fit.seconds + seconds:.1f} s"),
        ("compilation", f"{fit.compile_seconds:.1f} s"),
        ("this report", f"{seconds:.1f} s"),
    ]
    for name, sd in known[:2]:
        unit = unit_of(fit.units, name) or (unit_of(fit.units, "t") if _is_event(fit, name) else "")
        shown.append((f"noise of {name}", f"{number(sd, 3)} {unit}".strip()))
    inside = "".join(f"<div><b>{text(v)}</b><span>{text(k)}</span></div>\n" for k, v in shown)
    return f'<div class="tiles">\n{inside}</div>\n'


def _is_event(fit: Fit, name: str) -> bool:
    return any(name in e.events for e in fit.experiments)


# -- estimates ------------------------------------------------------------------------------------
def estimates(fit: Fit, pictures: Mapping[str, Picture]) -> str:
    """The table of the fitted numbers, and their intervals as a picture."""
    head = ["", "estimate", "95 % interval", "unit", "sd", "sd / estimate", "first guess", "remark"]
    rows = [_estimate(fit, k) for k in range(min(len(fit.names), MOST_ROWS))]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    left = len(fit.names) - len(rows)
    more = _more(left, ", in <code>fit.values</code>")
    hint = paragraph(
        "Intervals assume that the loss is a parabola around its minimum; "
        "<code>fit.profile(name)</code> gives one without that assumption.",
        "note",
    )
    if fit.certainty.why:
        hint = paragraph(f"No intervals: {text(fit.certainty.why)}.", "note")
    return section(
        "estimates", "Estimates", table(head, rows, left=(0, 3, 7)), more,
        _shown("parameters", pictures, f"Only the first {MOST_ROWS}." if left > 0 else ""),
        hint if np.isfinite(fit.sd).any() or fit.certainty.why else "",
    )  # fmt: skip


def _more(left: int, where: str = "") -> str:
    """What a shortened table leaves out."""
    return paragraph(f"… and {left:,} more{where}.", "note") if left > 0 else ""


def _estimate(fit: Fit, k: int) -> list[Any]:
    name, sd = fit.names[k], float(fit.sd[k])
    size = abs(float(fit.values[k]))
    remark, interval = "", Cell("–")
    if fit.at_bound[k]:
        remark = Cell("at its bound", kind="warn")
    elif fit.certainty.why:
        pass
    elif not np.isfinite(sd):
        remark = Cell("not determined", kind="warn")
    else:
        low, high, digits = float(fit.low[k]), float(fit.high[k]), _digits(size, sd, 5)
        interval = Cell(f"{number(low, digits)} to {number(high, digits)}", f"{low!r} to {high!r}")
    share = 100 * sd / size if np.isfinite(sd) and size > 0 else np.nan
    relative = f"{share:.2g} %" if share < 99 else f"{share:.0f} %" if share < 1e6 else "–"
    return [
        Cell(f"<code>{text(name)}</code>"), figures(fit.values[k], _digits(size, sd, 7)), interval,
        unit_of(fit.units, name.removeprefix("start.")), figures(sd, 2), relative,
        figures(fit.initial[k], 5), remark,
    ]  # fmt: skip


def _digits(size: float, sd: float, least: int) -> int:
    """As many digits as it takes to see the standard deviation."""
    if not (0 < sd < size):
        return least
    return int(np.clip(np.ceil(np.log10(size / sd)) + 2, least, 14))


def _shown(name: str, pictures: Mapping[str, Picture], note: str = "") -> str:
    return markup.picture(name, pictures[name], note) if name in pictures else ""


# -- data -----------------------------------------------------------------------------------------
def data(fit: Fit, pictures: Mapping[str, Picture]) -> str:
    """Data and fit."""
    if "data_and_fit" not in pictures:
        return section("data", "Data and fit", paragraph("Only times of events were measured."))
    every = sum(len(e.outputs) for e in fit.experiments)
    notes = []
    if every > fit_figure.MOST_PANELS:
        notes.append(
            f"Shown are {fit_figure.MOST_PANELS} of {every} series: those with the largest "
            "residuals."
        )
    if not fit_figure.has_bands(fit):
        notes.append("Bands of uncertainty are left out; fit.bands() computes them.")
    elif not np.all(np.isfinite(fit.sd)):
        notes.append("Bands do not include directions that the data do not determine.")
    return section("data", "Data and fit", _shown("data_and_fit", pictures, " ".join(notes)))


def left_over(fit: Fit, pictures: Mapping[str, Picture]) -> str:
    """Residuals and noise."""
    found = residual_figure.leftovers(fit)
    if not found:
        return ""
    head = ["output", "samples", "noise (sd)", "origin", "rms residual", "mean / sd",
            "largest / sd", "correlation of neighbours"]  # fmt: skip
    rows = [
        [
            label(name, fit.units), f"{v.count:,}", figures(v.noise, 4),
            "given" if v.given else fit.noise_origin.get(name, "estimated"),
            figures(v.rms, 4), figures(v.bias, 2),
            figures(v.largest, 3), figures(v.correlation, 2),
        ]
        for name, v in list(found.items())[:MOST_ROWS]
    ]  # fmt: skip
    left = len(found) - residual_figure.MOST_ROWS
    note = f"Shown are {residual_figure.MOST_ROWS} of {len(found)} outputs." if left > 0 else ""
    return section(
        "residuals", "Residuals and noise", table(head, rows, left=(0, 3)),
        _more(len(found) - MOST_ROWS),
        _shown("residuals", pictures, note),
    )  # fmt: skip


def events(fit: Fit, pictures: Mapping[str, Picture]) -> str:
    """Events: when they happened, and whether they were observed."""
    if "events" not in pictures:
        none = "No events happened." if fit._setup.scenario.system.events else "The model has none."
        return section("events", "Events", paragraph(none))
    unit = unit_of(fit.units, "t")
    matched = event_figure.match_words(fit)
    many = len(fit.experiments) > 1
    head = [*(["experiment"] if many else []), "event", "observed", "fitted", "paired",
            "rms difference" + (f" [{unit}]" if unit else ""), "noise (sd)",
            "which is"]  # fmt: skip
    rows = [
        [
            *([m[0]] if many else []),
            m[1],
            *m[2:5],
            figures(m[5], 3),
            figures(m[6], 3),
            fit.noise_origin.get(m[1], ""),
        ]
        for m in matched[:MOST_ROWS]
    ]
    shown = table(head, rows, left=(0, 1) if many else (0,)) if rows else ""
    drawn = event_figure.timelines(fit)
    few = len(drawn) < len(fit.experiments)
    note = f"Shown are {len(drawn)} of {len(fit.experiments)} experiments." if few else ""
    return section("events", "Events", shown, _shown("events", pictures, note))


# -- certainty ------------------------------------------------------------------------------------
def weak(fit: Fit) -> str:
    """Weak directions in words."""
    if not np.isfinite(fit.loss):
        return section("weak", "Weak directions", paragraph("Unknown: nothing could be simulated."))
    if fit.weak:
        more = len(fit.weak) - MOST_SENTENCES
        last = [f"… and {more} more."] if more > 0 else []
        inside = bullets([*(text(sentence) for sentence in fit.weak[:MOST_SENTENCES]), *last])
        advice = paragraph(
            "Fix one of them, give a prior, measure another output, or excite the system in "
            "another way.",
            "note",
        )
        return section("weak", "Weak directions", inside, advice)
    s, _ = uncertainty_figure.directions(fit)
    words = "Every combination of the fitted numbers is determined"
    words += f" to {100 * s[0]:.2g} % or better." if s.size else "."
    return section("weak", "Weak directions", paragraph(words))


def search(fit: Fit, pictures: Mapping[str, Picture]) -> str:
    """How the search went."""
    parts = loss_figure.stages(fit)
    if not parts:
        return section("search", "Search", paragraph("There were no iterations."))
    head = ["stage", "iterations", "first loss", "last loss", "seconds"]
    rows = [
        [
            s.name, f"{s.last - s.first + 1}", figures(s.before, 6), figures(s.after, 6),
            f"{s.seconds:.2f}",
        ]
        for s in parts[:MOST_ROWS]
    ]  # fmt: skip
    more = _more(len(parts) - MOST_ROWS)
    return section("search", "Search", _shown("loss", pictures), table(head, rows), more)


def identified(fit: Fit, pictures: Mapping[str, Picture]) -> str:
    """Correlations and directions."""
    if "identifiability" not in pictures:
        return section(
            "identifiability", "Identifiability",
            paragraph("A single number has no correlations; see its interval above."),
        )  # fmt: skip
    pairs = uncertainty_figure.strongest(fit)
    words = ""
    if pairs:
        said = listed(
            f"<code>{text(a)}</code> and <code>{text(b)}</code> ({number(c, 3)})"
            for a, b, c in pairs
        )
        words = paragraph(f"Most strongly correlated: {said}.")
    return section("identifiability", "Identifiability", _shown("identifiability", pictures), words)
