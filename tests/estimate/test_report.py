"""The report of a fit: every number and picture is there, and the file needs nothing else."""

import base64
import dataclasses
import html
import json
import re
import shutil
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

import saltus
from reports import cells, close, labels, like, measured, part, without_simulations
from saltus.base.extras import MissingExtra
from saltus.estimate.report import (
    event_figure,
    figures,
    fit_figure,
    markup,
    reproduction,
    sections,
    uncertainty_figure,
    write,
)

matplotlib.use("agg")

SECTIONS = [
    "estimates", "data", "residuals", "events", "weak", "search", "trust", "identifiability",
    "again",
]  # fmt: skip
PICTURES = ["parameters", "data_and_fit", "residuals", "events", "loss", "identifiability"]


@pytest.fixture(scope="module")
def fit():
    scenario, experiment = measured()
    return saltus.fit(scenario, experiment, {"g": 9.3, "e": 0.77}, noise={"h": 0.02})


@pytest.fixture(scope="module")
def path(fit, tmp_path_factory):
    return fit.report(tmp_path_factory.mktemp("report") / "ball.html")


@pytest.fixture(scope="module")
def page(path):
    return path.read_text(encoding="utf-8")


# -- the page -------------------------------------------------------------------------------------
def test_every_section_is_there_and_linked(page):
    assert re.findall(r'<section id="(\w+)">', page) == SECTIONS
    assert re.findall(r'href="#(\w+)"', page) == SECTIONS


def test_the_verdict_is_shown_at_the_optimum_and_along_the_search(fit, page):
    assert fit.verdict in part(page, "trust")
    assert len(fit.verdicts) == min(len(fit.history), 40)
    assert {v for _, v in fit.verdicts} <= {"TRUSTED", "DEGRADED", "UNTRUSTED"}
    seen, total = len(fit.doubts), len(fit.history)
    assert f"{seen} of {total} iterations were checked" in part(page, "trust")


def test_the_table_has_the_numbers_of_the_fit(fit, page):
    rows = cells(part(page, "estimates"))
    assert [row[0][0] for row in rows] == fit.names
    for k, row in enumerate(rows):
        assert float(row[1][1]) == fit.values[k]  # all digits are in the title
        assert float(row[1][0]) == pytest.approx(fit.values[k], rel=1e-6)
        assert float(row[4][1]) == fit.sd[k]
        assert [float(v) for v in row[2][1].split(" to ")] == [fit.low[k], fit.high[k]]
        assert float(row[6][1]) == fit.initial[k]
    assert rows[fit.names.index("g")][3][0] == "m/s^2"


def test_the_top_says_what_came_out(fit, page):
    assert fit.ok
    assert "<h1>Fit of bouncing ball</h1>" in page
    assert '<div class="verdict good"><strong>Converged</strong>' in page
    assert html.escape(fit.message) in page
    assert "40 samples of h and 3 event times, from 1 experiment" in page


def test_the_top_has_every_estimate_with_its_interval_before_anything_else(fit, page):
    top = page.partition("<nav>")[0]
    items = re.findall(r"<li>(.*?)</li>", top, re.S)
    assert len(items) == len(fit.names) and top.index("<li>") < top.index('class="tiles"')
    for k, item in enumerate(items):
        words = html.unescape(re.sub(r"<[^>]*>", "", item))
        name, value = re.match(r"(\S+) = (\S+)", words).groups()
        low, high = re.search(r"95 %: (\S+) to (\S+)", words).groups()
        assert name == fit.names[k] and float(value) == pytest.approx(fit.values[k], rel=1e-6)
        assert [float(low), float(high)] == pytest.approx([fit.low[k], fit.high[k]], rel=1e-3)
    many = sections.answer(like(fit, 200))
    assert many.count("<li>") == sections.TOP_NUMBERS + 1 and "194 more" in many


def test_the_page_suits_a_phone_and_folds_the_settings_away(page):
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert page.count("<table>") == page.count('<div class="wide"><table>') > 3
    folded = re.findall(r"<details>\n<summary>(.*?)</summary>", page)
    assert folded == ["Settings", "Versions"] and "<details open" not in page


def test_times_count_the_report_and_its_writing_is_said(fit, tmp_path, capsys):
    page = fit.report(tmp_path / "said.html", progress=True).read_text(encoding="utf-8")
    assert "writing the report" in capsys.readouterr().err
    fit.report(tmp_path / "quiet.html", progress=False)
    assert capsys.readouterr().err == ""
    tile = lambda name: float(re.search(rf"<b>([\d.]+) s</b><span>{name}</span>", page)[1])
    own = tile("this report")
    assert own > 0 and tile("time in all") == pytest.approx(fit.seconds + own, abs=0.11)


def test_noise_is_said_to_be_given_or_estimated(fit, page):
    (row,) = cells(part(page, "residuals"))
    assert [words for words, _ in row[:2]] == ["h [m]", "40"]
    assert float(row[2][1]) == pytest.approx(0.02) and row[3][0] == "given"
    s = fit.experiments[0].outputs["h"]
    assert float(row[4][1]) == pytest.approx(np.sqrt(np.mean((s.predicted - s.observed) ** 2)))


def test_observed_events_are_counted_with_their_partners(fit, page):
    (row,) = cells(part(page, "events"))
    match = fit.experiments[0].events["bounce"]
    assert [words for words, _ in row[:4]] == ["bounce", "3", "3", "3"]
    off = [match.predicted[j] - match.observed[i] for i, j in match.pairs]
    assert float(row[4][1]) == pytest.approx(np.sqrt(np.mean(np.square(off))))


def test_the_file_needs_no_other(page):
    for source in re.findall(r'\b(?:src|srcset|data|poster)\s*=\s*"([^"]*)"', page):
        assert source.startswith("data:image/png;base64,")
    for link in re.findall(r'\bhref\s*=\s*"([^"]*)"', page):
        assert link.startswith("#")
    inside = re.sub(r'src="data:[^"]*"', "", page)
    for word in ("http", "<script", "<link", "@import", "url(", "<iframe", "javascript:"):
        assert word not in inside


def test_pictures_are_inside_and_beside_and_nothing_else_is_written(path, page):
    folder = path.parent / "ball_files"
    assert sorted(p.name for p in path.parent.iterdir()) == ["ball.html", "ball_files"]
    assert sorted(p.stem for p in folder.iterdir()) == sorted(PICTURES)
    found = re.findall(r'<img id="picture-(\w+)" alt="([^"]+)".*?base64,([^"]*)"', page)
    assert [name for name, _, _ in found] == PICTURES
    for name, alt, content in found:
        assert len(alt) > 20
        png = base64.b64decode(content)
        assert png == (folder / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG") and len(png) > 5000


def test_the_call_can_be_read_by_python(fit):
    given = {}

    class Stand:
        fit = staticmethod(lambda model, data, **options: given.update(options))

    text = reproduction.call(fit).replace("import saltus", "")
    exec(text, {"saltus": Stand, "model": None, "data": None})
    assert given == {"free": fit.names, "noise": {"h": 0.02}}


# -- other fits -----------------------------------------------------------------------------------
def test_names_mean_nothing_to_the_browser(fit):
    odd = like(fit, 2, sd=0.1, names=['<b onclick="x">', "a & $b$"])
    odd = dataclasses.replace(odd, message="<script>alert(1)</script>")
    figure = figures.parameter_intervals(odd)
    picture = figures.Picture(figures._png(figure), '"><b', "<b>", 10, 10)
    pictures = dict.fromkeys(PICTURES, picture)
    made = "".join([
        sections.estimates(odd, pictures), sections.identified(odd, pictures), sections.weak(odd),
        sections.search(odd, pictures), reproduction.again(odd), markup.text(odd.message),
    ])  # fmt: skip
    assert "<b" not in made.replace("<body", "") and "<script" not in made
    assert "&lt;b onclick=&quot;x&quot;&gt;" in made and "a &amp; $b$" in made


@pytest.mark.parametrize(
    "changes, words, level",
    [
        ({"result": "interrupted"}, "Interrupted", "fair"),
        ({"result": "stalled"}, "Stalled", "fair"),
        ({"result": "out_of_iterations"}, "Out of iterations", "fair"),
        ({"result": "failed", "loss": np.inf}, "Failed", "bad"),
        ({"result": "suspect"}, "A minimum, but the data are not explained", "fair"),
    ],
)
def test_the_verdict_has_words_and_a_colour(fit, changes, words, level):
    said, colour = sections.verdict(dataclasses.replace(fit, **changes))
    assert said.startswith(words) and colour == level


def test_a_number_at_its_bound_is_marked(fit):
    held = dataclasses.replace(fit.certainty, at_bound=[True, False], sd=np.array([np.nan, 0.1]))
    bound = dataclasses.replace(fit, certainty=held)
    rows = cells(sections.estimates(bound, {}))
    assert [row[-1][0] for row in rows] == ["at its bound", ""]
    assert sections.verdict(bound) == (f"Converged, but {fit.names[0]} at a bound", "fair")
    figure = figures.parameter_intervals(bound)
    assert "estimate at a bound" in labels(figure)
    close(figure)


def test_of_many_numbers_only_some_are_shown(fit):
    many = like(fit, 200)
    assert not fit_figure.has_bands(many)
    assert figures.parameter_intervals(many) is None  # none of them has an interval
    made = sections.estimates(many, {})
    assert len(cells(made)) == 40 and "160 more" in made
    assert sections.weak(many).count("<li>") == 6
    figure = figures.identifiability(many)
    written = [t.get_text() for a in figure.axes for t in (*a.get_yticklabels(), *a.texts)]
    assert any("weight (100)" in word for word in written) and len(written) < 30
    close(figure)


def test_correlations_of_undetermined_numbers_are_left_open(fit):
    certainty = dataclasses.replace(fit.certainty, sd=np.array([np.inf, 0.1]))
    some = dataclasses.replace(fit, certainty=certainty)
    assert np.isnan(uncertainty_figure.correlations(some)).tolist() == [[True, True], [True, False]]


def test_a_first_guess_that_cannot_be_simulated_is_left_out(fit, monkeypatch):
    monkeypatch.setattr(fit_figure, "MOST_BANDS", 0)
    lone = without_simulations(fit, first_only=True)
    figure = figures.data_and_fit(lone)
    assert labels(figure) == ["data", "fit", "bounce (fit)"]
    close(figure)
    ((kind,),) = event_figure.timelines(lone).values()
    assert kind.guessed is None and [lane[0] for lane in kind.lanes()] == ["fit"]
    close(figures.event_timeline(lone))


def test_a_fit_without_simulations_and_iterations_has_a_report(fit, tmp_path):
    failed = dataclasses.replace(
        like(without_simulations(fit), 1, names=["g"]), result="failed", loss=np.inf, history=[]
    )
    path = write(failed, tmp_path / "deep" / "failed")
    assert path == tmp_path / "deep" / "failed.html"
    page = path.read_text(encoding="utf-8")
    shown = [name for name in SECTIONS if name != "trust"]  # nothing to certify
    assert re.findall(r'<section id="(\w+)">', page) == shown
    assert '<div class="verdict bad">' in page
    kept = sorted(p.stem for p in (tmp_path / "deep" / "failed_files").iterdir())
    assert kept == ["data_and_fit", "residuals"]


def test_pictures_of_an_earlier_report_do_not_stay(fit, tmp_path, monkeypatch):
    folder = tmp_path / "r_files"
    folder.mkdir()
    for name in ("events.png", "mine.png"):
        (folder / name).write_bytes(b"old")
    monkeypatch.setattr(figures, "pictures", lambda fit: {})
    write(fit, tmp_path / "r.html")
    assert [p.name for p in folder.iterdir()] == ["mine.png"]


def test_partners_are_connected_and_lonely_events_ringed():
    kind = event_figure.Kind("hit", np.array([1.0, 2.0]), np.array([1.1, 3.0]), None, [(0, 0)])
    observed, fitted = kind.alone()
    assert observed.tolist() == [2.0] and fitted.tolist() == [3.0]
    assert kind.off() == pytest.approx([0.1])


def test_the_band_of_measurements_holds_about_95_percent_of_them_piece_by_piece(fit):
    figure = figures.data_and_fit(fit)
    assert {"95 % of the curve", "95 % of measurements", "event observed"} <= set(labels(figure))
    wide = [c for c in figure.axes[0].collections if c.get_alpha() == 0.10]
    assert len(wide) == 4  # three bounces
    outlines = [path for c in wide for path in c.get_paths()]
    s = fit.experiments[0].outputs["h"]
    inside = [
        any(outline.contains_point(point) for outline in outlines)
        for point in zip(s.t, s.observed, strict=True)
    ]
    assert 0.85 <= np.mean(inside) <= 1.0  # 34 of 40 are less likely than 2 %
    close(figure)


def test_without_matplotlib_the_error_says_what_to_install(fit, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtra, match=r'needs matplotlib.*pip install "saltus\[plot\]"'):
        fit.report(tmp_path / "none.html")
    assert not list(tmp_path.iterdir())


# -- in a browser ---------------------------------------------------------------------------------
def browse(path, profile, *flags):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium here")
    quiet = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={profile}", "--window-size=1100,5000",
    ]  # fmt: skip
    run = subprocess.run(
        [chromium, *quiet, *flags, path.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0
    return run.stdout


def test_a_browser_shows_every_picture_and_nothing_is_wider_than_the_page(page, tmp_path):
    probe = """<script>addEventListener("load", () => {
      const pictures = [...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth])
      const seen = {pictures, wide: document.documentElement.scrollWidth, room: innerWidth}
      document.body.dataset.probe = JSON.stringify(seen) })</script></body>"""
    copy = tmp_path / "probe.html"
    copy.write_text(page.replace("</body>", probe), encoding="utf-8")
    dom = browse(copy, tmp_path / "profile", "--dump-dom")
    seen = json.loads(html.unescape(re.search(r'data-probe="([^"]*)"', dom)[1]))
    assert len(seen["pictures"]) == len(PICTURES)
    for complete, natural, shown in seen["pictures"]:
        assert complete and natural > 1000 and shown > 800
    assert seen["wide"] <= seen["room"]


def test_a_browser_paints_it(path, tmp_path):
    shot = tmp_path / "shot.png"
    browse(path, tmp_path / "profile", f"--screenshot={shot}")
    from matplotlib.image import imread

    picture = imread(shot)
    assert picture.shape[:2] == (5000, 1100)
    assert picture[:4500].std() > 0.02  # not an empty page
