"""What a kill would leave is looked at after every line of a save, a checkpoint and a new start.

A process that is killed leaves what it had given to the system; what it still held itself is gone.
That is what another look at the folder sees. So the folder is copied whenever a line of the package
has changed it, and every copy must hold the old or the new, whole: the old up to some moment, and
the new from then on.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import natural_langevin
import small_run
from natural_langevin import Posterior, StorageError
from natural_langevin._internal import tensorfile
from natural_langevin.run.checkpoint import RunCheckpoint
from small_run import network

PACKAGE = Path(natural_langevin.__file__).parent
#: All that writes.
FILES = {
    str(PACKAGE / f"{n}.py")
    for n in (
        "_internal/atomic",
        "_internal/tensorfile",
        "posterior/storage",
        "posterior/stores",
        "run/checkpoint",
    )
}


class Camera:
    """Copies a folder after every line of the package that changes it."""

    def __init__(self, folder: Path, album: Path) -> None:
        self._folder, self._album = folder, album
        self._seen: Any = None
        self.copies: list[Path] = []

    def film(self, deed: Callable[[], Any]) -> None:
        before = sys.gettrace()
        sys.settrace(self._calls)
        try:
            deed()
        finally:
            sys.settrace(before)
        self._look()

    def _calls(self, frame: Any, event: str, arg: Any) -> Any:
        return self._lines if frame.f_code.co_filename in FILES else None

    def _lines(self, frame: Any, event: str, arg: Any) -> Any:
        if event == "line":
            self._look()
        return self._lines

    def _look(self) -> None:
        stats = [(p.name, p.stat()) for p in sorted(self._folder.iterdir())]
        now = [(name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats]
        if now != self._seen:
            self._seen = now
            self.copies.append(self._album / str(len(self.copies)))
            shutil.copytree(self._folder, self.copies[-1])


@pytest.fixture
def camera(tmp_path, monkeypatch):
    """Small pieces and no buffer: every few bytes are a moment of their own."""
    pieces, opening = tensorfile.pieces, Path.open

    def small(tensor):
        for piece in pieces(tensor):
            yield from (piece[start : start + 100] for start in range(0, len(piece), 100))

    def unbuffered(self, mode="r", *arguments, **named):
        return opening(self, mode, *arguments, **({"buffering": 0} if mode == "x+b" else named))

    monkeypatch.setattr(tensorfile, "pieces", small)
    monkeypatch.setattr(Path, "open", unbuffered)
    (tmp_path / "folder").mkdir()
    return Camera(tmp_path / "folder", tmp_path / "album")


@pytest.fixture(scope="module")
def old():
    return small_run.sample()


@pytest.fixture(scope="module")
def new():
    return small_run.sample(sampler={"seed": 6})


def changes_once(seen: list[str], kinds: list[str], moments: int) -> None:
    """First always the one, then always the other, and many moments of the first."""
    assert seen == sorted(seen, key=kinds.index)
    assert set(seen) == set(kinds)
    assert len(seen) >= moments


def weight(posterior: Posterior) -> torch.Tensor:
    return torch.cat([value.flatten() for value in posterior.samples.values()])


@pytest.mark.parametrize("memory_map", [False, True])
def test_a_save_is_the_old_posterior_or_the_new_one(camera, tmp_path, old, new, memory_map):
    old.save(tmp_path / "folder")
    camera.film(lambda: new.save(tmp_path / "folder"))
    seen = []
    for copy in camera.copies:
        found = weight(Posterior.load(copy, network(), memory_map=memory_map))
        seen.append("new" if torch.equal(found, weight(new)) else "old")
        assert torch.equal(found, weight(new if seen[-1] == "new" else old))
    changes_once(seen, ["old", "new"], moments=20)


def test_a_first_save_is_nothing_or_the_posterior(camera, tmp_path, new):
    camera.film(lambda: new.save(tmp_path / "folder"))
    seen = []
    for copy in camera.copies:
        try:
            assert torch.equal(weight(Posterior.load(copy, network())), weight(new))
            seen.append("new")
        except StorageError as error:
            seen.append(str(error).partition("holds ")[2][:18])
    changes_once(seen, ["no saved posterior", "new"], moments=20)


def test_a_checkpoint_is_the_old_one_or_the_new_one(camera, tmp_path):
    run = RunCheckpoint(tmp_path / "folder", {"seed": 1})
    trees = [{"step": torch.full((50,), step)} for step in range(4)]
    for tree in trees[:3]:
        run.save(tree)
    camera.film(lambda: run.save(trees[3]))
    seen = []
    for copy in camera.copies:
        found = RunCheckpoint(copy, {"seed": 1}).load(trees[0])["step"]
        assert bool((found == found[0]).all())
        seen.append(str(int(found[0])))
    changes_once(seen, ["2", "3"], moments=6)


def test_draws_that_are_drawn_again_are_never_taken_for_the_old_ones(camera, tmp_path, old):
    folder = tmp_path / "folder"
    small_run.sample(store=folder).save(folder)
    camera.film(lambda: small_run.sample(store=folder))
    seen = []
    for copy in camera.copies:
        try:
            found = Posterior.load(copy, network(), memory_map=True)
            assert torch.equal(weight(found), weight(old))
            seen.append("old")
        except StorageError as error:
            seen.append(str(error).partition("holds ")[2][:18])
    changes_once(seen, ["old", "no saved posterior"], moments=6)
