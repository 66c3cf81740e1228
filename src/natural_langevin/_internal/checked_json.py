"""JSON with a checksum, written atomically and validated when read."""

from __future__ import annotations

import errno
import hashlib
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from natural_langevin._internal.atomic import write_output

#: No file of ours comes near it.
MOST_BYTES = 1 << 28


def read_json(path: Path) -> Any:
    """The JSON in a plain file of bounded size; OSError or ValueError where there is anything else.

    Pipes and devices are refused: one would be waited for, the other read for ever."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    if found.st_size > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes", str(path))
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all; NaN is refused rather than written as invalid JSON."""
    write_output(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def checksum(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the fields without their own checksum, whatever their order and spacing."""
    rest = {key: value for key, value in fields.items() if key != "checksum"}
    canonical = json.dumps(rest, sort_keys=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def with_checksum(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with their checksum, ready to be written; ValueError if one is NaN or infinite."""
    plain = json.loads(json.dumps(fields, allow_nan=False))
    return {"checksum": checksum(plain), **plain}


def without_checksum(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without their checksum; ValueError where it does not fit them."""
    if fields.get("checksum") != checksum(fields):
        raise ValueError("it was changed after it was written: its checksum differs")
    return {key: value for key, value in fields.items() if key != "checksum"}
