"""Whether several descriptions are of the same run, and if not, in which settings they differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: What follows from the rest, and is noted for whoever reads it.
DERIVED = {"plan"}


def differing(*settings: Mapping[str, Any]) -> list[str]:
    """The names whose values are not the same in all of ``settings``; a missing one is no value.

    >>> differing({"seed": 1, "steps": 10}, {"seed": 2, "steps": 10, "thin": 5})
    ['seed', 'thin']
    """
    names = dict.fromkeys(name for one in settings for name in one if name not in DERIVED)
    return [n for n in names if any(one.get(n) != settings[0].get(n) for one in settings[1:])]


def check_same_run(
    folder: Path,
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    *,
    what: str,
    remedy: str,
    error: type[Exception],
) -> None:
    """Raises ``error`` if the run described in a folder is not the current one.

    It names all settings that differ, and both values of the first."""
    names = differing(here, there)
    if names:
        name, ours, theirs = names[0], here.get(names[0]), there.get(names[0])
        while isinstance(ours, dict) and isinstance(theirs, dict) and set(ours) == set(theirs):
            inner = differing(ours, theirs)[0]
            name, ours, theirs = f"{name} {inner}", ours[inner], theirs[inner]
        raise error(
            f"{folder} holds {what}: {', '.join(names)} differ ({name}: {_brief(theirs)} there, "
            f"{_brief(ours)} here). {remedy}"
        )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
