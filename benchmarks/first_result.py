"""What a first result costs: python benchmarks/first_result.py [--only PROBLEM] [--jobs JOB ...].

Every job runs in a process of its own, without any cache; then again in two further processes with
a persistent cache that starts empty, of which the second is measured (skip them by --cold). The
table has seconds of CPU time for the whole process, and how much of it was tracing and lowering to
StableHLO, and XLA; the number and the size of XLA's programs; the peak of memory. --against FOLDER
runs the same with a checkout of another version and prints ratios; --growth runs models of growing
size; --peers adds diffrax and CasADi (extra `bench`); --json FILE writes all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import one_core, peak_gigabytes

HERE = Path(__file__).parent
JOBS = ("solve", "gradient", "Hessian", "certify", "fit", "lanes", "compare")
ALONE = ("import jax", "import", "demo")  # without a model
LANES = 1000
GROWTH = {
    "states": (2, 20, 200),
    "guards": (1, 10, 100),
    "modes": (2, 8, 32),
    "array": (10, 100, 1000, 10_000),
}
PEERS = ("diffrax solve", "diffrax gradient", "casadi solve", "casadi gradient")
HEAD = ("job", "wall", "CPU", "lowering", "XLA", "programs", "kB", "memory", "2nd CPU", "2nd wall")


# -- in a process of its own ----------------------------------------------------------------------


def child(problem: str, job: str) -> None:
    """Run one job and print what it cost as a line of JSON."""
    began = time.process_time()
    import jax

    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}

    def took(event: str, duration: float, **_: object) -> None:
        name = event.rsplit("/", 1)[-1]
        seconds[name] = seconds.get(name, 0.0) + duration
        counts[name] = counts.get(name, 0) + 1

    def happened(event: str, **_: object) -> None:
        name = event.rsplit("/", 1)[-1]
        counts[name] = counts.get(name, 0) + 1

    jax.monitoring.register_event_duration_secs_listener(took)
    jax.monitoring.register_event_listener(happened)
    run(problem, job)
    report = {
        "cpu": time.process_time(),
        "began": began,
        "lowering": seconds.get("jaxpr_to_mlir_module_duration", 0.0),
        "xla": seconds.get("backend_compile_duration", 0.0),
        "programs": counts.get("backend_compile_duration", 0) - counts.get("cache_hits", 0),
        "gigabytes": peak_gigabytes(),
    }
    print(json.dumps(report))


def run(problem: str, job: str) -> None:
    if job == "import jax":
        return
    if problem in PEERS:
        return _peer(problem)
    import saltus

    if job == "import":
        return
    if job == "demo":
        from saltus import cli

        with tempfile.TemporaryDirectory() as folder:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            cli.main(["demo", "--out", folder])
            sys.stdout = sys.__stdout__
        return
    from problems import first_result as problems

    name, _, size = problem.partition(":")
    given = problems.GROWING[name](int(size)) if size else problems.PROBLEMS[name]()
    _job(saltus, given, job)


def _job(saltus, given, job: str) -> None:
    import jax
    import jax.numpy as jnp

    loss, p = given.loss, given.p
    if job == "solve":
        given.solve(p)
    elif job == "gradient":
        jax.value_and_grad(loss)(p)
    elif job == "Hessian":
        jax.hessian(loss)(p)
    elif job == "certify":
        saltus.certify(loss, p)
    elif job == "compare":
        saltus.compare(loss, p)
    elif job == "fit":
        _fit(saltus, given)
    elif job == "lanes":
        some = jnp.linspace(1.0, 1.001, LANES)
        lanes = jax.tree.map(lambda v: some.reshape(-1, *[1] * jnp.ndim(v)) * v, p)
        jax.vmap(jax.value_and_grad(loss))(lanes)


def _fit(saltus, given) -> None:
    """From 20 measurements with noise, a tenth away from the truth; with the report."""
    import jax
    import numpy as np

    ts = np.linspace(0.05 * given.t1, given.t1, 20)
    exact = given.solve(given.p, ts=ts).y
    draw = np.random.default_rng(0)
    flat = {}
    for path, v in jax.tree_util.tree_flatten_with_path(exact)[0]:
        if np.ndim(v) == 1:
            name = ".".join(str(getattr(k, "key", k)) for k in path)
            flat[name] = np.asarray(v) + 0.01 * draw.normal(size=20)
    if not flat:  # an array of states: its first entry
        values = np.asarray(jax.tree.leaves(exact)[0])
        name = ".".join(
            str(getattr(k, "key", k)) for k in jax.tree_util.tree_flatten_with_path(exact)[0][0][0]
        )
        flat = {f"{name}[0]": values[:, 0] + 0.01 * draw.normal(size=20)}
    free = list(given.free) or [k for k, v in given.p.items() if np.ndim(v) == 0]
    guess = {k: v * 1.1 if k in free[:2] else v for k, v in given.p.items()}
    options = {} if given.method is None else {"method": given.method}
    data = {"t": ts, **flat}
    start = given.start(given.p)
    fit = saltus.fit(given.system, data, guess, start=start, free=free[:2], **options)
    with tempfile.TemporaryDirectory() as folder:
        fit.report(Path(folder) / "report.html")


def _peer(name: str) -> None:
    from tools import first_peers

    first_peers.RUNS[name]()


# -- the table ------------------------------------------------------------------------------------


def measured(problem: str, job: str, source: str | None, environment: dict[str, str]) -> dict:
    env = {**os.environ, **environment}
    if source is not None:
        env["PYTHONPATH"] = f"{source}/src"
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--child", problem, job],
        capture_output=True, text=True, timeout=1800, env=env, cwd=HERE,
    )  # fmt: skip
    wall = time.perf_counter() - began
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["child failed"]
        return {"note": lines[-1][:100]}
    return {**json.loads(done.stdout.strip().splitlines()[-1]), "wall": wall}


def row(problem: str, job: str, source: str | None, cold: bool, sizes: bool) -> dict:
    """What a job costs in a cold process, and in a second one that shares a cache with a first."""
    off = {"SALTUS_CACHE": "0", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    found = measured(problem, job, source, off)
    with tempfile.TemporaryDirectory() as folder:
        if sizes and "note" not in found:
            measured(problem, job, source, {**off, "JAX_DUMP_IR_TO": folder})
            files = Path(folder).glob("*.mlir")
            found["kilobytes"] = sum(f.stat().st_size for f in files) / 1000
    if not cold and "note" not in found:
        with tempfile.TemporaryDirectory() as folder:
            on = {"SALTUS_CACHE": folder}
            measured(problem, job, source, on)
            second = measured(problem, job, source, on)
            found["second_cpu"], found["second_wall"] = second.get("cpu"), second.get("wall")
            found["second_programs"] = second.get("programs")
    return found


def cells(label: str, found: dict) -> tuple[str, ...]:
    if "note" in found:
        return (label, found["note"], *[""] * (len(HEAD) - 2))

    def number(key: str, digits: int = 2, unit: str = "") -> str:
        value = found.get(key)
        return "" if value is None else f"{value:.{digits}f}{unit}"

    return (
        label, number("wall", 1), number("cpu", 1), number("lowering"), number("xla"),
        number("programs", 0), number("kilobytes", 0), number("gigabytes", 2, " GB"),
        number("second_cpu", 1), number("second_wall", 1),
    )  # fmt: skip


def ratios(found: dict, other: dict) -> str:
    """CPU, programs and the second process, each by those of the other version."""
    parts = []
    for key, word in (("cpu", "CPU"), ("programs", "programs"), ("second_cpu", "2nd CPU")):
        if found.get(key) is not None and other.get(key):
            parts.append(f"{word} {found[key] / other[key]:.2f}")
    return ", ".join(parts)


def work(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(label, problem, job) of everything to run."""
    from problems.first_result import PROBLEMS

    if options.growth:
        sizes = [(f"{kind}:{n}", "gradient") for kind, ns in GROWTH.items() for n in ns]
        return [(p, p, job) for p, job in sizes if not options.only or options.only in p]
    out = [(job, "-", job) for job in ALONE if not options.only or options.only == job]
    for problem in PROBLEMS:
        if options.only and options.only != problem:
            continue
        out += [(f"{problem}: {job}", problem, job) for job in options.jobs]
    if options.peers:
        out += [(name, name, "-") for name in PEERS]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one problem, or one of: " + ", ".join(ALONE))
    parser.add_argument("--jobs", nargs="*", default=JOBS, choices=JOBS)
    parser.add_argument("--cold", action="store_true", help="without a persistent cache")
    parser.add_argument("--sizes", action="store_true", help="also the size of the programs")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--against", metavar="FOLDER", help="a checkout of another version")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(*options.child)
    one_core()
    rows = {}
    widths = (30, 6, 6, 8, 6, 8, 6, 8, 7, 8)
    print("  ".join(h.ljust(w) for h, w in zip(HEAD, widths, strict=True)))
    for label, problem, job in work(options):
        found = row(problem, job, None, options.cold, options.sizes)
        line = "  ".join(c.ljust(w) for c, w in zip(cells(label, found), widths, strict=True))
        if options.against and "note" not in found:
            found["other"] = row(problem, job, options.against, options.cold, False)
            line += "  " + ratios(found, found["other"])
        rows[label] = found
        print(line.rstrip(), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
