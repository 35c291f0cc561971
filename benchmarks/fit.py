"""Fits of the papers' learning problems: how near, how fast, beside what the papers report.

`python benchmarks/fit.py` runs every fit in a process of its own on one core, so that compilation
is counted once and for each. "wall" is the call of `saltus.fit` with everything it compiles; "run"
is the same call again, where nothing is left to compile. The Adam rows use the papers' own budget
with our gradients. Times of the papers are theirs, from other machines: a scale, not a race.
"""

import argparse
import json
import time

from harness import in_child, one_core

PAPER = {
    "ladder": "26 s, errors 0.3 to 5 % (500 Adam iterations)",
    "3 balls": "7.4 s for 100 iterations, loss 1.4e-9 in the end",
    "7 balls": "7.1 s for 100 iterations, loss 1.6e-9 in the end",
    "15 balls": "11 s for 100 iterations, loss 1.4e-5 in the end",
}
LIMITS = {
    "ladder": ("wall", 15.0),
    "3 balls": ("run", 7.4),
    "7 balls": ("run", 7.1),
    "15 balls": ("run", 11.0),
}
WAYS = {
    "ladder": ("default", "adam"),
    **dict.fromkeys(("3 balls", "7 balls", "15 balls"), ("default", "adam")),
}


def problem(name):
    """The model, its data, the first guess, the truth, and the Adam iterations of the paper."""
    import numpy as np

    from problems import fit as problems

    if name == "ladder":
        model, truth, guess = problems.ladder(), problems.ELEMENTS, problems.ladder_guess()
        ts, budget = problems.GRID, 500
    else:
        model, truth = problems.balls(int(name.split()[0])), problems.BALLS
        guess, ts, budget = problems.balls_guess(), np.linspace(0.0, problems.BALLS_END, 501), 100
    y = model.solve(ts=ts).y
    columns = {"t": ts}
    for key, v in y.items():
        v = np.asarray(v)
        columns |= {key: v} if v.ndim == 1 else {f"{key}[{k}]": v[:, k] for k in range(v.shape[1])}
    return model, columns, guess, truth, budget


def child(name, way):
    """One fit, twice; prints what came out as JSON."""
    import saltus

    model, data, guess, truth, budget = problem(name)
    options = {} if way == "default" else {
        "optimiser": "adam", "search": "local", "max_iterations": budget, "noise": 1.0,
        "options": {"learning_rate": 0.01},
    }  # fmt: skip
    found, times = None, []
    for _ in range(2):
        clock = time.perf_counter()
        found = saltus.fit(model, data, guess, **options)
        times.append(time.perf_counter() - clock)
    error = max(abs(found[key] / value - 1) for key, value in truth.items())
    events = sorted({h["events"] for h in found.history})
    print(json.dumps({
        "problem": name, "way": way, "error": error, "wall": times[0], "run": min(times),
        "evaluations": found.evaluations, "events": events, "result": found.result,
    }))  # fmt: skip


def line(row):
    name, way = row["problem"], row["way"]
    which, limit = LIMITS[name]
    met = (
        ""
        if way != "default"
        else "ok"
        if row["error"] <= 1e-6 and row[which] <= limit
        else "MISSED"
    )
    span = f"{row['events'][0]} to {row['events'][-1]}"
    return (
        f"{name:<9} {way:<8} {row['error']:>9.1e} {row['wall']:>8.2f} s {row['run']:>8.3f} s "
        f"{row['evaluations']:>6} {span:>9}  {met:<7} {PAPER[name] if way == 'default' else ''}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="problems whose name contains NAME")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_core()
    if options.child:
        return child(*options.child)
    print("problem   way      worst err     wall        run    evals    events  target  the paper")
    rows = []
    for name, ways in WAYS.items():
        if options.only is None or options.only in name:
            for way in ways:
                row, _ = in_child("--child", name, way)
                rows.append(row)
                print(line(row), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
