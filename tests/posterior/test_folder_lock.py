"""One folder, one owner: of two processes that want it, one gets it and the other is told who has.

The processes are real, and so is the kill: see ``rivals``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import small_run
import warm
from natural_langevin import StorageError
from natural_langevin._internal import folder_lock
from natural_langevin._internal.folder_lock import FolderInUseError, FolderLock
from natural_langevin.run.collector import SampleCollector

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return json.loads(warm.run([HERE / "rivals.py", tmp_path_factory.mktemp("rivals")]))


@pytest.mark.parametrize("scenario", ["store", "checkpoint", "seeds"])
def test_of_two_runs_in_one_folder_the_second_is_refused_in_words(found, scenario):
    first, second = found[scenario]
    assert first == found["undisturbed"]
    assert second.startswith("FolderInUseError")
    assert "is in use: process " in second
    assert " has been sampling (" in second
    assert "use another folder" in second


def test_when_the_first_is_done_the_folder_is_free(found):
    assert found["again"] == [found["undisturbed"]]


def test_saves_to_one_folder_follow_each_other_and_readers_see_whole_posteriors(found):
    assert found["saves"][:2] == ["saved", "saved"]
    assert found["saves"][2] in (1, 2), "a reader saw something else than one of the two"
    assert found["loaded"] in found["either"]
    assert found["left"] == [".json", ".safetensors", ".safetensors"]


def test_a_lock_dies_with_its_process_though_a_child_lives_on(found):
    holder, refused, taken = found["killed"]
    assert f"process {holder} on " in refused
    assert "has been being killed there since 20" in refused
    assert taken is None


def test_a_thread_may_lock_again_what_it_holds_and_another_may_not(tmp_path):
    refused = []

    def other():
        try:
            FolderLock(tmp_path, "too late")
        except FolderInUseError as error:
            refused.append(str(error))

    with FolderLock(tmp_path, "working"):
        with FolderLock(tmp_path, "working again"):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(list(tmp_path.iterdir())) == 1
    assert "another thread of this process" in refused[0]
    assert not list(tmp_path.iterdir())


def test_without_locks_the_owners_name_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "fcntl", None)
    held = FolderLock(tmp_path, "working")
    owner = json.loads((tmp_path / ".lock").read_text())
    monkeypatch.setattr(folder_lock, "_held", {})  # as another process sees it
    with pytest.raises(FolderInUseError, match=r"remove .*lock"):
        FolderLock(tmp_path, "too late")
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    (tmp_path / ".lock").write_text(json.dumps(owner | {"pid": child.pid}))
    FolderLock(tmp_path, "in time").release()
    assert not list(tmp_path.iterdir())
    held.release()


@pytest.mark.parametrize("content", [b"", b"not JSON", b"[1]", b'{"pid": "x"}', b"\xff" * 20])
def test_an_owner_file_of_any_content_is_no_obstacle(tmp_path, content):
    (tmp_path / ".lock").write_bytes(content)
    with FolderLock(tmp_path, "working"):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


PLANTED = {
    "link": lambda lock, victim: lock.symlink_to(victim),
    "link to nothing": lambda lock, victim: lock.symlink_to(victim.with_name("new")),
    "second name": lambda lock, victim: lock.hardlink_to(victim),
    "pipe": lambda lock, victim: os.mkfifo(lock),
    "folder": lambda lock, victim: lock.mkdir(),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_lock_that_is_no_file_of_ours_is_refused_and_nothing_written_through_it(tmp_path, kind):
    posterior, victim = small_run.sample(), tmp_path / "victim"
    for user in ("checkpoint", "store", "save"):
        folder = tmp_path / user
        folder.mkdir()
        victim.write_text("precious")
        PLANTED[kind](folder / ".lock", victim)
        with pytest.raises(StorageError, match=r"\.lock is a .*, not a plain file: remove it"):
            posterior.save(folder) if user == "save" else small_run.sample(**{user: folder})
        assert victim.read_text() == "precious"
        assert not victim.with_name("new").exists()
        assert os.path.lexists(folder / ".lock")


def test_a_link_put_in_the_place_of_a_held_lock_is_not_written_through(tmp_path, monkeypatch):
    victim, lock = tmp_path / "victim", tmp_path / "folder" / ".lock"
    victim.write_text("precious")
    lock.parent.mkdir()
    is_at = folder_lock._is_at

    def swapped(file, path):  # between the look at the name and the owner's
        found = is_at(file, path)
        lock.unlink()
        lock.symlink_to(victim)
        return found

    monkeypatch.setattr(folder_lock, "_is_at", swapped)
    FolderLock(lock.parent, "working").release()
    assert victim.read_text() == "precious"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_runs_that_fail_leak_no_descriptor(tmp_path, monkeypatch):
    def broken(self, state):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(SampleCollector, "keep", broken)
    counts = []
    for _ in range(4):
        with pytest.raises(RuntimeError, match="in the middle"):
            small_run.sample(store=tmp_path / "draws", checkpoint=tmp_path / "run", every=1)
        counts.append(descriptors())
    assert counts[1] == counts[-1]
    assert not (tmp_path / "draws" / ".lock").exists()
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_draw_that_changed_between_kill_and_resume_is_refused(tmp_path, monkeypatch):
    where = {"store": tmp_path / "draws", "checkpoint": tmp_path / "run", "every": 1}
    keep = SampleCollector.keep

    def stop(self, state):
        keep(self, state)
        if self.kept == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SampleCollector, "keep", stop)
        with pytest.raises(KeyboardInterrupt):
            small_run.sample(**where)
    path = small_run.the_file(tmp_path / "draws", "draws")
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    changed = bytearray(whole)
    changed[header] ^= 1  # of the first draw of the first parameter
    path.write_bytes(changed)
    with pytest.raises(StorageError, match=r"draw 0 in .* is damaged"):
        small_run.sample(**where)
    path.write_bytes(whole)
    small_run.assert_same(small_run.sample(), small_run.sample(**where))
