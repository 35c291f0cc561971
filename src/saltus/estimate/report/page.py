"""The page: one self-contained HTML file, for light and dark screens and for print."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import sections
from .certificates import trust
from .markup import text
from .reproduction import again

if TYPE_CHECKING:
    from ..result import Fit
    from .figures import Picture

STYLE = """
:root { --ink: #22282e; --soft: #5c6670; --line: #dfe3e7; --paper: #ffffff; --tint: #f5f7f9;
  --blue: #1b6ca8; --good: #2e8b6f; --fair: #b8740f; --bad: #c43a4e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8eb; --soft: #a3adb6; --line: #363d44; --paper: #171b1f; --tint: #20262b;
    --blue: #6db3e3; --good: #57c29f; --fair: #e6ac4f; --bad: #ef7d8c; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", sans-serif; }
main { max-width: 1024px; margin: 0 auto; padding: 2.2rem 2rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .7rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { margin: .6rem 0; max-width: 46rem; }
.date { color: var(--soft); margin: .2rem 0 1.2rem; }
.verdict { border-left: 5px solid; border-radius: 4px; background: var(--tint);
  padding: .7rem 1rem .75rem; margin: 1rem 0; }
.verdict strong { font-size: 1.1rem; }
.verdict p { margin: .15rem 0 0; max-width: none; }
.good { border-color: var(--good); } .good strong { color: var(--good); }
.fair { border-color: var(--fair); } .fair strong { color: var(--fair); }
.bad { border-color: var(--bad); } .bad strong { color: var(--bad); }
.answer { list-style: none; padding: 0; margin: 1rem 0; max-width: none; display: grid;
  grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .3rem 1.6rem; }
.answer li { margin: 0; } .answer span { white-space: nowrap; }
.answer i { display: block; font-style: normal; color: var(--soft); white-space: nowrap; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(7rem, 1fr)); gap: 1px;
  border: 1px solid var(--line); border-radius: 6px; overflow: hidden; margin: 1.2rem 0; }
.tiles div { padding: .5rem .8rem .55rem; box-shadow: 0 0 0 1px var(--line); }
.tiles b { display: block; font-size: 1.05rem; font-weight: 600; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: .82rem; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .92rem; }
a { color: var(--blue); text-decoration: none; } a:hover { text-decoration: underline; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .9rem; min-width: 60%; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1.5px solid var(--line);
  padding: .3rem .9rem .3rem 0; vertical-align: bottom; white-space: nowrap; }
td { border-bottom: 1px solid var(--line); padding: .3rem .9rem .3rem 0; vertical-align: top; }
td:last-child, th:last-child { padding-right: 0; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td code { white-space: nowrap; font-size: .95em; }
.warn { color: var(--bad); font-weight: 600; }
.note, figcaption { color: var(--soft); font-size: .9rem; }
figure { margin: 1.1rem 0 1.4rem; }
img { display: block; width: 100%; height: auto; background: #fff; border-radius: 6px;
  border: 1px solid var(--line); padding: 8px; }
figcaption { margin-top: .5rem; max-width: 50rem; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  font-size: .88em; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 6px;
  padding: .8rem 1rem; overflow-x: auto; line-height: 1.45; }
ul { padding-left: 1.2rem; max-width: 50rem; } li { margin: .35rem 0; }
details { margin: .7rem 0; } summary { cursor: pointer; font-weight: 600; }
footer { color: var(--soft); font-size: .85rem; margin-top: 3rem; }
@media (max-width: 560px) {
  main { padding: 1.2rem 1rem 3rem; } h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; }
  .wide { margin-right: -1rem; padding-right: 1rem; }
  table { font-size: .84rem; } th, td { padding-right: .7rem; }
  td:first-child, th:first-child { position: sticky; left: 0; background: var(--paper); }
  img { padding: 2px; } pre { font-size: .78rem; padding: .6rem .7rem; }
}
@media print {
  :root { --ink: #000; --soft: #444; --line: #ccc; --paper: #fff; --tint: #f5f5f5;
    --blue: #000; --good: #1d6b53; --fair: #8a5608; --bad: #a32639; }
  body { font-size: 10pt; } main { padding: 0; max-width: none; } nav { display: none; }
  figure, tr, .verdict, .tiles { break-inside: avoid; } h2 { break-after: avoid; }
  img { border: 0; padding: 0; } pre { white-space: pre-wrap; }
}
"""

CONTENTS = {
    "estimates": "Estimates",
    "data": "Data and fit",
    "residuals": "Residuals",
    "events": "Events",
    "weak": "Weak directions",
    "search": "Search",
    "trust": "Trust",
    "identifiability": "Identifiability",
    "again": "How to reproduce it",
}


def page(fit: Fit, pictures: Mapping[str, Picture], seconds: float = 0.0) -> str:
    """The whole report; `seconds` is the time spent on its figures."""
    name = fit._setup.scenario.name
    body = "".join(
        [
            sections.estimates(fit, pictures),
            sections.data(fit, pictures),
            sections.left_over(fit, pictures),
            sections.events(fit, pictures),
            sections.weak(fit),
            sections.search(fit, pictures),
            trust(fit),
            sections.identified(fit, pictures),
            again(fit),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Fit of {text(name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{_top(fit, name, seconds)}{_contents(body)}{body}"
        "<footer>Written by saltus.</footer>\n"
        "</main>\n</body>\n</html>\n"
    )


def _top(fit: Fit, name: str, seconds: float) -> str:
    """Title, date, verdict and summary: what was found, and from what."""
    words, level = sections.verdict(fit)
    now = datetime.datetime.now()
    return (
        f"<header>\n<h1>Fit of {text(name)}</h1>\n"
        f'<p class="date">{now.day} {now:%B %Y, %H:%M}</p>\n'
        f'<div class="verdict {level}"><strong>{text(words)}</strong>\n'
        f"<p>{text(fit.message)}</p></div>\n{sections.answer(fit)}"
        f'<p class="summary">{text(sections.summary(fit))}</p>\n'
        f"{sections.tiles(fit, seconds)}</header>\n"
    )


def _contents(body: str) -> str:
    """Links to the sections of the page."""
    links = [
        f'<a href="#{name}">{title}</a>\n'
        for name, title in CONTENTS.items()
        if f'<section id="{name}">' in body
    ]
    return f"<nav>\n{''.join(links)}</nav>\n"
