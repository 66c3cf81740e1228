"""The file of an experiment's results: {"settings", "rows", and where they come from}.

It is written after every piece and gone on with later; files of several processes become one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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


class PartsError(ValueError):
    """Files that do not belong together, or none."""


def join_parts(
    folder: Path, *, same: Sequence[str], place: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    """The JSON files of ``folder``, each with some "rows", as one: what is not a row is the first
    file's. All must agree on their commit and on the entries ``same``; ``place`` gives a row its
    place in the order, and of two rows with one place the last file's counts."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise PartsError(f"{folder} holds no results (*.json): run some parts with --out in there")
    rows: dict[Any, dict[str, Any]] = {}
    parts: list[dict[str, Any]] = []
    for path in files:
        try:
            parts.append(read_json(path))
            rows |= {place(row): row for row in parts[-1]["rows"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PartsError(f"{path} holds no results ({error}): remove it") from None
        for key in (*same, "commit"):
            if parts[-1].get(key) != parts[0].get(key):
                raise PartsError(f"{path} has other {key} than {files[0]}: run it anew")
    return parts[0] | {"rows": [rows[key] for key in sorted(rows)]}
