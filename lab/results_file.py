"""The file of an experiment's results: written after every piece, and gone on with later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from natural_langevin._internal.checked_json import read_json, write_json


def open_results(
    path: Path, settings: dict[str, Any], rows: list[Any] | dict[str, Any], error: type[ValueError]
) -> dict[str, Any]:
    """What the file holds, {"settings": ..., "rows": ...}, or the beginning of it: ``rows`` where
    there is no file yet. ``error`` where it holds anything else, or results of other settings."""
    described = json.loads(json.dumps(settings))  # tuples become lists, as in a file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return {"settings": described, "rows": rows}
    try:
        found: dict[str, Any] = read_json(path)
        same = found["settings"] == described and isinstance(found["rows"], type(rows))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise error(f"{path} holds no results ({problem}): give another --out") from None
    if not same:
        raise error(f"{path} holds results of other settings: give another --out")
    return found


def write_results(path: Path, results: dict[str, Any]) -> None:
    """The whole file or nothing."""
    write_json(path, results)
