"""``checkpoint=`` and ``store=`` at a URL: a folder's bits, whole at every moment, locked."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import small_run
import warm
from natural_langevin import StorageError
from natural_langevin._internal import object_store
from natural_langevin._internal.folder_lock import FolderInUseError
from natural_langevin._internal.object_store import ObjectFolder
from small_run import assert_same, sample_until

fsspec = pytest.importorskip("fsspec")

URL = "memory://runs/one"


@pytest.fixture(autouse=True)
def _empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Copies that a killed process leaves behind are pytest's to remove.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    fsspec.filesystem("memory").store.clear()


def names() -> set[str]:
    return set(fsspec.filesystem("memory").store)


def sample(url: str = URL, **settings: Any) -> Any:
    return small_run.sample(checkpoint=f"{url}/run", store=f"{url}/draws", every=3, **settings)


def test_a_run_that_is_cut_off_goes_on_with_a_folders_bits(tmp_path, monkeypatch):
    plain = small_run.sample(checkpoint=tmp_path / "run", store=tmp_path / "draws", every=3)
    sample_until(monkeypatch, 5, sample)
    found = sample()
    assert_same(plain, found)
    assert_same(plain, sample())  # which is at its end already
    assert found.config["store"] == plain.config["store"]


def test_one_url_may_hold_both(monkeypatch):
    both = {"checkpoint": URL, "store": URL, "every": 3}
    sample_until(monkeypatch, 5, lambda: small_run.sample(**both))
    assert_same(small_run.sample(), small_run.sample(**both))


def test_draws_alone(monkeypatch):
    assert_same(small_run.sample(), small_run.sample(store=URL))
    with ObjectFolder(URL, "reading") as there:
        assert [path.suffix for path in there.folder.iterdir()] == [".safetensors"]


def test_whatever_request_is_the_last_the_content_is_that_before_or_after(monkeypatch):
    """Cut off before every request of a commit in turn."""
    store = type(fsspec.filesystem("memory"))
    monkeypatch.setattr(object_store, "BLOCK", 4)
    contents = {"a": b"0123456789", "b": b"old"}, {"a": b"0123xx6789", "c/d": b"new"}
    seen = []
    for last in range(20):
        left = [10_000]

        def counted(name: str, left: list[int] = left) -> Any:
            plain = getattr(store, name)

            def call(self: Any, *args: Any, **options: Any) -> Any:
                if left[0] == 0:
                    raise ConnectionError("cut off")
                left[0] -= 1
                return plain(self, *args, **options)

            return call

        with monkeypatch.context() as patch:
            for name in ("pipe_file", "cat_file", "rm_file", "ls"):
                patch.setattr(store, name, counted(name))
            there = ObjectFolder(f"{URL}/{last}", "writing")
            fill(there.folder, contents[0])
            there.commit()
            fill(there.folder, contents[1])
            left[0] = last
            try:
                there.commit()
                seen.append("done")
            except StorageError:
                seen.append("cut")
            left[0] = 0
            there._closed.set()  # it is dead: it releases nothing
            monkeypatch.setattr(object_store, "_PROCESS", f"another {last}")
        with ObjectFolder(f"{URL}/{last}", "reading") as again:
            found = held(again.folder)
            assert found in contents
            assert found == contents[1] or seen[-1] == "cut"
            blocks = [name for name in names() if name.startswith(f"/runs/one/{last}/blocks/")]
            assert len(blocks) == sum(-(-len(text) // 4) for text in found.values())
    assert "cut" in seen
    assert seen[-1] == "done"


def fill(folder: Path, content: dict[str, bytes]) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()
    for name, text in content.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)


def held(folder: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_only_blocks_that_changed_are_sent(monkeypatch):
    monkeypatch.setattr(object_store, "BLOCK", 4)
    with ObjectFolder(URL, "writing") as there:
        fill(there.folder, {"a": b"0123456789"})
        there.commit()
        before = names()
        there.commit()
        assert names() == before
        fill(there.folder, {"a": b"0123xx6789"})
        there.commit()
        blocks = {name for name in names() if "/blocks/" in name}
        assert len(blocks - before) == 1
        assert len(blocks) == 3


def test_a_place_in_use_is_refused_and_one_whose_owner_is_silent_is_taken_over(monkeypatch):
    first = ObjectFolder(URL, "sampling")
    with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on .* was sampling"):
        small_run.sample(checkpoint=URL)
    elsewhere = {"host": "elsewhere", "pid": 1, "token": "t", "purpose": "sampling"}
    assert not object_store._is_gone(elsewhere | {"sign": time.time() - 200})
    assert object_store._is_gone(elsewhere | {"sign": time.time() - 400})
    with monkeypatch.context() as patch:
        patch.setattr(object_store, "_is_gone", lambda owner: True)
        second = ObjectFolder(URL, "sampling")
    (first.folder / "late").write_text("late")
    with pytest.raises(FolderInUseError, match="another process has taken over"):
        first.commit()
    second.close()
    with ObjectFolder(URL, "reading") as there:
        assert not held(there.folder)


def test_an_owner_gives_signs_of_life(monkeypatch):
    monkeypatch.setattr(object_store, "SIGN", 0.005)
    with ObjectFolder(URL, "sampling") as there:
        first = {name for name in names() if name.endswith(".json")}
        deadline = time.monotonic() + 30
        while first & names():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert not held(there.folder)


def test_damage_is_noticed(tmp_path):
    with ObjectFolder(URL, "writing") as there:
        fill(there.folder, {"a": b"right"})
        there.commit()
    (block,) = [name for name in names() if "/blocks/" in name]
    fsspec.filesystem("memory").pipe_file(block, b"wrong")
    with pytest.raises(StorageError, match="a in memory://runs/one is damaged"):
        ObjectFolder(URL, "reading")


@pytest.mark.parametrize(
    ("url", "match"),
    [("file:///tmp/x", "give its path"), ("ftp-like://x/y", "cannot reach")],
)
def test_other_urls_are_refused(url, match):
    with pytest.raises(StorageError, match=match):
        small_run.sample(checkpoint=url)


def test_a_store_that_overwrites_is_refused(monkeypatch):
    store = type(fsspec.filesystem("memory"))
    plain = store.pipe_file
    monkeypatch.setattr(
        store, "pipe_file", lambda self, path, value, mode="overwrite": plain(self, path, value)
    )
    with pytest.raises(StorageError, match="no conditional put"):
        ObjectFolder(URL, "sampling")


def test_errors_name_the_url():
    small_run.sample(checkpoint=URL)
    with pytest.raises(StorageError, match=r"memory://runs/one holds a checkpoint of another run"):
        small_run.sample(checkpoint=URL, sampler={"seed": 6})


# A real server ------------------------------------------------------------------------------------

WORKER = """
import sys
import small_run
from natural_langevin.run.collector import SampleCollector
url = sys.argv[1]
keep = SampleCollector.keep
def counted(self, state):
    keep(self, state)
    print(self.kept, flush=True)
    sys.stdin.readline()
SampleCollector.keep = counted
small_run.sample(checkpoint=url + "/run", store=url + "/draws", every=3)
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket of an S3 server on this machine."""
    server = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    settings = {
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("bucket")
        yield "s3://bucket/runs"
        running.stop()


@pytest.mark.filterwarnings("ignore")  # of packages that are not ours
def test_killed_and_resumed_on_s3(s3, tmp_path):
    """SIGKILL twice; each process has nothing but the bucket."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)

    def work(lines: int) -> list[int]:
        (theirs, asking), (hearing, out) = os.pipe(), os.pipe()
        process = warm.start([script, s3], stdin=theirs, stdout=out, stderr=2)
        os.close(theirs)
        os.close(out)
        seen = []
        with os.fdopen(asking, "w", buffering=1) as go_on, os.fdopen(hearing) as kept:
            while len(seen) < lines:
                seen.append(int(kept.readline()))
                if len(seen) < lines:
                    go_on.write("\n")
            process.kill()
            assert process.wait(timeout=60) == -signal.SIGKILL
        return seen

    assert work(4) == [1, 2, 3, 4]
    assert work(3) == [3, 4, 5]  # from step 6, the last checkpoint: two draws were kept
    with pytest.raises(FolderInUseError), ObjectFolder(f"{s3}/run", "sampling"):
        sample(s3)
    assert_same(small_run.sample(), sample(s3))


@pytest.mark.filterwarnings("ignore")
def test_of_two_who_claim_one_gets_it_on_s3(s3):
    first = ObjectFolder(f"{s3}/claimed", "sampling")
    with pytest.raises(FolderInUseError, match="in use"):
        ObjectFolder(f"{s3}/claimed", "sampling")
    first.close()
    ObjectFolder(f"{s3}/claimed", "sampling").close()
