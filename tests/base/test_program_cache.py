"""Compiled programs are kept for other processes, and a cache never stands in the way."""

import os
import subprocess
import sys
import threading

import pytest

from saltus.base.program_cache import ProgramFolder

PROCESS = """
import jax

counts = {"cache_hits": 0, "cache_misses": 0}


def happened(event, **_):
    name = event.rsplit("/", 1)[-1]
    counts[name] = counts.get(name, 0) + 1


jax.monitoring.register_event_listener(happened)
import saltus
BEFORE
WORK
print(counts["cache_hits"], counts["cache_misses"])
"""

GRADIENT = """
system = saltus.HybridSystem(lambda now, p: -p * now.x)
start = saltus.Instant(t=0.0, x=1.0)
print(float(jax.grad(lambda p: saltus.solve(system, start, p, 1.0).final.x)(0.5)).hex())
"""
LITTLE = "print(jax.jit(lambda x: x * x + 1)(3.0))"


def computed(cache, work=LITTLE, before="", **environment):
    """The result, and how many programs were found and kept, of a process of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    env |= {"SALTUS_CACHE": str(cache), **environment}
    code = PROCESS.replace("BEFORE", before).replace("WORK", work)
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=env
    )
    assert out.returncode == 0, out.stderr
    result, numbers = out.stdout.splitlines()
    return result, *map(int, numbers.split())


def test_a_second_process_compiles_nothing_and_has_the_same_numbers(tmp_path):
    first, _, made = computed(tmp_path, GRADIENT)
    second, found, more = computed(tmp_path, GRADIENT)
    assert 0 < made <= 16, "a first gradient compiles few programs"
    assert found >= made and more == 0
    assert first == second


def test_it_can_be_switched_off_and_is_where_it_is_told_to_be(tmp_path):
    home = {"XDG_CACHE_HOME": str(tmp_path / "home"), "LOCALAPPDATA": str(tmp_path / "home")}
    assert computed("0", **home, HOME=str(tmp_path / "home"))[1:] == (0, 0)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("late", [False, True], ids=["before the import", "after it"])
def test_a_cache_that_the_user_has_chosen_is_left_alone(tmp_path, late):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    settings = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    before = ""
    if late:
        before = f"jax.config.update('jax_compilation_cache_dir', {str(theirs)!r})"
    else:
        settings["JAX_COMPILATION_CACHE_DIR"] = str(theirs)
    computed(tmp_path / "ours", before=before, **settings)
    assert list(theirs.iterdir())
    assert not (tmp_path / "ours").exists()


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    assert computed(tmp_path / "file" / "folder")[1] == 0


def test_a_damaged_program_is_not_used_and_deleted(tmp_path):
    folder = ProgramFolder(tmp_path)
    folder._left = lambda: False
    folder.put("a", b"program")
    assert folder.get("a") == b"program" and folder.get("b") is None
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert folder.get("a") is None
    assert not list(tmp_path.iterdir())


def test_what_was_not_used_for_the_longest_time_makes_room(tmp_path):
    folder = ProgramFolder(tmp_path, most=3000)
    folder._left = lambda: False
    for k in range(9):
        folder.put(str(k), bytes(500))
        file = next(tmp_path.glob(f"{k}.*"))
        os.utime(file, (1e9 + k, 1e9 + k))
        if k:
            assert folder.get("0") == bytes(500)  # used: its file is new again
        assert sum(f.stat().st_size for f in tmp_path.iterdir()) <= 3000
    left = {f.stem for f in tmp_path.iterdir()}
    assert "0" in left and "8" in left and "1" not in left


def test_many_may_write_and_read_at_once(tmp_path):
    folders = [ProgramFolder(tmp_path, most=20_000) for _ in range(4)]
    wrong = []

    def work(folder):
        for k in range(100):
            folder.put(str(k % 20), bytes([k % 20]) * 3000)
            for j in range(20):
                found = folder.get(str(j))
                if found not in (None, bytes([j]) * 3000):
                    wrong.append(j)

    for folder in folders:
        folder._left = lambda: False
    threads = [threading.Thread(target=work, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
