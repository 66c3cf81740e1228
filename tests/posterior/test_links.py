"""Links in the place of saved files: only plain files are read, and none is written through."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import small_run
from natural_langevin import Posterior, StorageError
from reader_guard import guarded
from small_run import assert_same, network


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    small_run.sample().save(folder)
    Posterior.load(folder, network())  # imports what is imported when it is needed
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("target", ["folder", "pipe", "/dev/zero", "/dev/null", "nothing", "loop"])
@pytest.mark.parametrize("which", ["posterior.json", "samples-*", "posterior-*"])
def test_links_to_what_is_no_plain_file_are_refused(saved, tmp_path, target, which):
    folder = tmp_path / "saved"
    folder.mkdir()
    for name, content in files(saved).items():
        (folder / name).write_bytes(content)
    path = folder / next(saved.glob(which)).name
    path.unlink()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    path.symlink_to(path if target == "loop" else tmp_path / target)
    for memory_map in (False, True):
        with guarded(), pytest.raises(StorageError):
            Posterior.load(folder, network(), memory_map=memory_map)


def test_a_link_to_the_file_itself_is_as_good_as_the_file(saved, tmp_path):
    folder = tmp_path / "saved"
    folder.mkdir()
    for name in files(saved):
        (folder / name).symlink_to(saved / name)
    before, found = files(saved), Posterior.load(folder, network())
    assert_same(Posterior.load(saved, network()), found)
    found.save(folder)  # replaces the links, never what they point to
    assert files(saved) == before
