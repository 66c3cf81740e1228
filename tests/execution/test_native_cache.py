"""The cache of the native engine: only what this user or root has written, and whole, is loaded."""

from __future__ import annotations

import ctypes
import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from natural_langevin.execution.kernels.native import build, compiler

pytestmark = pytest.mark.skipif(build.library(torch.float32) is None, reason="no C compiler")


@pytest.fixture(scope="module")
def content() -> bytes:
    """The library that this process has loaded, or one like it."""
    found = build._prebuilt(torch.float32) or build._cached(build._name(torch.float32))
    if found is None:
        pytest.skip("the library of this process is in no file")
    return found.read_bytes()


#: What loads; a cache notes it.
CDLL = ctypes.CDLL


class Cache:
    """A cache folder of its own, and what was built for it and loaded from it."""

    def __init__(self, root: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.content, self.builds = root, content, 0
        self.folder = root / f"native-{os.geteuid()}"
        self.loaded: list[str] = []
        monkeypatch.setenv("NATURAL_LANGEVIN_CACHE", str(root))
        monkeypatch.setattr(build, "_prebuilt", lambda dtype: None)
        monkeypatch.setattr(compiler, "build", self.build)
        monkeypatch.setattr(build.ctypes, "CDLL", self.load)
        build._say_uncached.cache_clear()
        self._monkeypatch = monkeypatch

    def build(self, target: Path, *_: object, **__: object) -> None:
        self.builds += 1
        target.write_bytes(self.content)

    def load(self, path: str) -> ctypes.CDLL:
        self.loaded.append(path)
        return CDLL(path)

    def library(self) -> ctypes.CDLL | None:
        """As a process finds it that has not asked before."""
        self._monkeypatch.setattr(build, "_KNOWN", {})
        return build.library(torch.float32)

    @property
    def file(self) -> Path:
        (path,) = self.folder.glob("*.so")
        return path


@pytest.fixture
def cache(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Cache:
    return Cache(tmp_path / "cache", content, monkeypatch)


def test_it_is_built_once_and_only_its_owner_can_write_it(cache: Cache) -> None:
    before = os.umask(0)
    try:
        assert cache.library() is not None
    finally:
        os.umask(before)
    assert cache.library() is not None
    assert cache.builds == 1
    assert cache.loaded == [str(cache.file)] * 2
    assert stat.S_IMODE(cache.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700


def given_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a path another user's."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        own = os.geteuid()
        monkeypatch.setattr(build, "_refuse_foreign", _as_seen_by(own + 1, build._refuse_foreign))


def _as_seen_by(user: int, function):  # type: ignore[no-untyped-def]
    def seen(path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "_user", lambda: user)
            function(path)

    return seen


@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("how", ["owner", "group", "others", "link"])
def test_what_others_can_write_is_not_loaded(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, what: str, how: str
) -> None:
    cache.library()
    path = cache.file if what == "file" else cache.folder
    if how == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))
    elif how == "owner":
        given_away(path, monkeypatch)
    else:
        path.chmod(path.stat().st_mode | (stat.S_IWGRP if how == "group" else stat.S_IWOTH))
    was = cache.file.stat().st_ino
    cache.loaded.clear()
    assert cache.library() is not None
    assert cache.builds == 2
    loaded = Path(cache.loaded[0])
    assert loaded.parent != cache.folder or loaded.stat().st_ino != was


@pytest.mark.parametrize("name", ["NATURAL_LANGEVIN_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_no_library_comes_from_the_folder_one_works_in(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    cache.library()
    planted = tmp_path / "work"
    planted.mkdir()
    monkeypatch.chdir(planted)
    for below in (".", "natural-langevin", ".cache/natural-langevin"):
        (planted / below / cache.folder.name).mkdir(parents=True)
        (planted / below / cache.folder.name / cache.file.name).write_bytes(cache.content)
    monkeypatch.delenv("NATURAL_LANGEVIN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(name, ".")
    cache.loaded.clear()
    assert cache.library() is not None
    assert cache.builds == 2
    assert all(str(planted) not in path and Path(path).is_absolute() for path in cache.loaded)


@pytest.mark.parametrize("place", [0, 20, 1000, -1])
@pytest.mark.parametrize("how", ["cut", "changed"])
def test_a_damaged_library_is_never_loaded_and_built_anew(
    cache: Cache, place: int, how: str
) -> None:
    cache.library()
    damaged = bytearray(cache.content)
    damaged[place] ^= 1
    path = cache.file
    path.unlink()  # which this process has loaded
    path.write_bytes(damaged if how == "changed" else cache.content[:place])
    path.chmod(0o600)
    cache.loaded.clear()
    assert cache.library() is not None
    assert cache.builds == 2
    assert cache.file.read_bytes() == cache.content


def test_a_library_without_our_functions_is_built_anew(cache: Cache, tmp_path: Path) -> None:
    cache.library()
    source = tmp_path / "other.c"
    source.write_text("int other(void) { return 0; }")
    other = tmp_path / "other.so"
    subprocess.run([compiler.find_compiler(), "-shared", "-fPIC", source, "-o", other], check=True)
    name = cache.file.stem.rpartition("-")[0]
    cache.file.unlink()
    path = cache.folder / f"{name}-{build._digest(other.read_bytes())}.so"
    path.write_bytes(other.read_bytes())
    path.chmod(0o600)
    assert cache.library() is not None
    assert cache.builds == 2


def test_a_user_without_a_home_is_told_once(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("NATURAL_LANGEVIN_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with caplog.at_level(logging.WARNING):
        assert cache.library() is not None
        assert cache.library() is not None
    assert caplog.text.count("no cache for the native engine (there is no home folder)") == 1
    assert not Path(cache.loaded[0]).exists()  # nothing stays behind


def test_where_nothing_can_be_written_it_serves_the_process_alone(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NATURAL_LANGEVIN_CACHE", "/proc/self/nowhere")
    assert cache.library() is not None
    assert "no cache for the native engine" in caplog.text


def test_what_a_killed_build_left_is_swept(cache: Cache) -> None:
    cache.library()
    parts = [cache.folder / f".{name}.part" for name in ("old", "young")]
    for part in parts:
        part.write_bytes(b"")
    hours_ago = time.time() - 2 * 3600
    os.utime(parts[0], (hours_ago, hours_ago))
    cache.file.unlink()
    cache.library()
    assert [part.exists() for part in parts] == [False, True]


def test_a_compiler_that_does_not_speak_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "cc"
    script.write_bytes(f"#!{sys.executable}\nimport sys\n".encode())
    with script.open("a") as file:
        file.write("sys.stderr.buffer.write(b'\\xff\\xfe error: \\x80 no\\n')\nsys.exit(1)\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    with pytest.raises(compiler.NoLibraryError, match="error: � no"):
        compiler.build(tmp_path / "library.so", "float32", tune=())
