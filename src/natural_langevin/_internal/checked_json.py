"""JSON with a checksum of its own: a file that was damaged or edited is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def checksum(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the fields without their own checksum, whatever their order and spacing."""
    rest = {key: value for key, value in fields.items() if key != "checksum"}
    canonical = json.dumps(rest, sort_keys=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def with_checksum(fields: Mapping[str, Any]) -> dict[str, Any]:
    """As it is to be written. ValueError where it holds a NaN, which JSON cannot."""
    plain = json.loads(json.dumps(fields, allow_nan=False))
    return {"checksum": checksum(plain), **plain}


def without_checksum(fields: dict[str, Any]) -> dict[str, Any]:
    """What was written; ValueError where it is not what is there now."""
    if fields.get("checksum") != checksum(fields):
        raise ValueError("it was changed after it was written: its checksum differs")
    return {key: value for key, value in fields.items() if key != "checksum"}
