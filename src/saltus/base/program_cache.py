"""Compiled programs are kept in a folder, so that another process need not compile them again.

JAX asks a cache for every program that it is about to compile. Its own keeps files without a bound,
or reads the whole folder whenever it adds one; ours writes files that are complete or absent,
whatever other processes do, and deletes those that were not used for the longest time.

The environment variable SALTUS_CACHE names another folder, or switches the cache off (`0`). A cache
that the user has chosen by JAX's own settings is left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import jax

from .jax_names import install_cache, remove_cache

MAX_BYTES = 2**30  # of all programs
KEPT_SHARE = 0.8  # of that, once programs are deleted
USE_SECONDS = 3600.0  # a program that was used within this time is not marked as used again
SUFFIX = ".program"
DIGEST_BYTES = 16  # at the start of each file


def choose_cache() -> Path | None:
    """Let JAX keep programs in our folder, and say which; None if there is no cache of ours."""
    wanted = os.environ.get("SALTUS_CACHE", "")
    if wanted == "0" or _set_by_user() is not None:
        return None
    try:
        folder = Path(wanted) if wanted else user_cache() / "saltus"
    except RuntimeError:  # there is no home
        return None
    folder = folder / f"programs-{_processor()}"
    return folder if install_cache(ProgramFolder(folder), str(folder)) else None


def _set_by_user() -> str | None:
    return jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]


def user_cache() -> Path:
    """The folder in which programs keep what they can make again."""
    if sys.platform == "win32" and "LOCALAPPDATA" in os.environ:
        return Path(os.environ["LOCALAPPDATA"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _processor() -> str:
    """Different for processors with different instructions: a home may be shared by machines."""
    words = platform.machine() + platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        words += next((line for line in file if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest()


class ProgramFolder:
    """Programs as files, found by their keys. Where the folder fails, there is no program."""

    def __init__(self, folder: Path, most: int = MAX_BYTES):
        self._path = folder
        self.most = most
        self.size: int | None = None  # in bytes, once it was counted

    def get(self, key: str) -> bytes | None:
        """The program with this key, if there is one."""
        if self._left():
            return None
        file = self._path / f"{key}{SUFFIX}"
        try:
            found = file.read_bytes()
        except OSError:
            return None
        if _digest(found[DIGEST_BYTES:]) != found[:DIGEST_BYTES]:  # a damaged disk
            with contextlib.suppress(OSError):
                os.unlink(file)
            return None
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > USE_SECONDS:
                os.utime(file)
        return found[DIGEST_BYTES:]

    def put(self, key: str, value: bytes) -> None:
        """Keep a program."""
        if self._left():
            return
        with contextlib.suppress(OSError):
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_digest(value) + value)
                os.replace(name, self._path / f"{key}{SUFFIX}")
            except OSError:
                os.unlink(name)
                raise
            self._make_room(len(value))

    def _left(self) -> bool:
        """Whether the user has named another folder in JAX's settings since."""
        left = _set_by_user() != str(self._path)
        if left:
            remove_cache()
        return left

    def _make_room(self, more: int) -> None:
        if self.size is None:
            self.size = sum(size for _, size, _ in self._files())
        else:
            self.size += more
        if self.size <= self.most:
            return
        files = sorted(self._files())
        self.size = sum(size for _, size, _ in files)
        for _, size, name in files:
            if self.size <= KEPT_SHARE * self.most:
                return
            with contextlib.suppress(OSError):
                os.unlink(name)
            self.size -= size

    def _files(self) -> list[tuple[float, int, str]]:
        """When each file was last used, its size, and its name; of temporary files, too."""
        found = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    state = entry.stat()
                    found.append((state.st_mtime, state.st_size, entry.path))
        return found
