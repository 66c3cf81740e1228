"""Results that several processes wrote, each into a file of its own, as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from natural_langevin._internal.checked_json import read_json


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
