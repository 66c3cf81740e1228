"""From a list of mirrors to verified files in a folder."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from natural_langevin._internal.atomic import staged
from natural_langevin._internal.progress import Progress

from . import verify
from .errors import CorruptDataError, DownloadError
from .sources import IdxFile

TIMEOUT_SECONDS = 5.0  # to connect, and for the longest silence: offline must fall through soon
_CHUNK = 1 << 16
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


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

    Returns the array, of shape `file.shape`. Raises DownloadError or CorruptDataError.
    """
    with staged(destination) as handle:
        for chunk in _stream(url, limit=verify.size_limit(file), timeout=timeout):
            handle.write(chunk)
        handle.seek(0)
        return verify.read_handle(handle, file, compressed=True, label=url)


def _stream(url: str, *, limit: int, timeout: float) -> Iterator[bytes]:
    """The bytes at `url`, with progress; every network error becomes a DownloadError."""
    _require_safe(url)
    request = urllib.request.Request(url, headers={"User-Agent": "natural-langevin"})
    opener = urllib.request.build_opener(_RefuseDowngrade)
    received = 0
    try:
        with opener.open(request, timeout=timeout) as response:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            with Progress(f"Downloading {url}", total, bytes=True) as bar:
                while chunk := response.read(_CHUNK):
                    received += len(chunk)
                    if received > limit:
                        raise DownloadError(f"{url}: longer than the {limit} bytes allowed")
                    bar.update(received)
                    yield chunk
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"{url}: HTTP status {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, DownloadError):
            raise
        raise DownloadError(f"{url}: {getattr(error, 'reason', error)}") from error
    if total is not None and received < total:
        raise DownloadError(f"{url}: the connection closed after {received} of {total} bytes")


def _require_safe(url: str, *, loopback: bool = True) -> None:
    """HTTPS, or plain http from this very machine (a local mirror, a test) if `loopback`."""
    parts = urlsplit(url)
    is_local = loopback and parts.scheme == "http" and parts.hostname in _LOOPBACK
    if parts.scheme != "https" and not is_local:
        raise DownloadError(f"{url}: refused, only https addresses are downloaded")


class _RefuseDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects as usual, but never away from https."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            _require_safe(newurl, loopback=urlsplit(req.full_url).scheme != "https")
        except DownloadError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)
