"""The file of an experiment's results: {"settings", "rows", and where they come from}.

It is written after every piece and gone on with later; files of several processes become one.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lab.command import CommandError
from lab.jobs import side_by_side
from natural_langevin._internal.checked_json import read_json, write_json
from natural_langevin.cli.experiments.origin import origin

Row = dict[str, Any]


def complete(
    out: Path, settings: dict[str, Any], items: Iterable[tuple[Any, ...]], work: Callable[..., Row],
    *, by: Sequence[str] = (), jobs: int = 1, device: str = "cpu", seconds: float = math.inf,
    summary: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The content of ``out`` once it has the row ``work(*item)`` of every item: those that it has
    are not run again, and it is written after each.

    Rows are in the order of their entries ``by``, which are what an item holds; without, they are a
    dictionary by "one|two" of an item's parts. ``seconds``: no row begins later. ``summary``: what
    is made of all rows."""
    results = open_results(out, settings, [] if by else {}, CommandError)
    known = {_place(row, by): row for row in results["rows"]} if by else dict(results["rows"])

    def name(item: tuple[Any, ...]) -> Any:
        return item if by else "|".join(map(str, item))

    missing = [item for item in items if name(item) not in known]
    one = functools.partial(_with_item, work, time.time() + seconds)
    for item, row in side_by_side(one, missing, jobs):
        if row is None:
            continue
        known[name(item)] = row
        results["rows"] = [known[key] for key in sorted(known)] if by else known
        results["origin"] = origin(device)
        if summary is not None:
            results["summary"] = summary(results["rows"])
        write_results(out, results)
        print(*item, row, flush=True)
    return results


def _place(row: Row, by: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[key] for key in by)


def _with_item(
    work: Callable[..., Row], until: float, item: tuple[Any, ...]
) -> tuple[tuple[Any, ...], Row | None]:
    return item, work(*item) if time.time() < until else None


def attempted(work: Callable[..., Row], *item: Any) -> Row:
    """``work(*item)``, or what went wrong in it: one of many rows, and the others go on."""
    try:
        return work(*item)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


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
        same = found.get("settings", {}) == described and isinstance(found["rows"], type(rows))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise error(f"{path} holds no results ({problem}): give another --out") from None
    if not same:
        raise error(f"{path} holds results of other settings: give another --out")
    return found


def write_results(path: Path, results: dict[str, Any]) -> None:
    """The whole file or nothing."""
    write_json(path, results)


def finite(tree: Any) -> Any:
    """For JSON, which knows no NaN and no infinity: None in their place."""
    if isinstance(tree, dict):
        return {k: finite(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [finite(v) for v in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


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
