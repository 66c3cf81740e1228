"""results.json as it is read, and the one error for whatever a page or picture cannot show."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from natural_langevin._internal.checked_json import read_json

FORMAT = 1
REMEDY = "write it again with `natural-langevin reproduce`"


class ResultsError(ValueError):
    """Results that this version cannot show; the message says what is wrong and what to do."""


def load_results(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a results.json; NaN and Infinity, as Python writes them, are accepted."""
    name = Path(path).name
    try:
        results = read_json(Path(path))
    except (OSError, ValueError) as error:  # no file, not UTF-8, or not JSON
        raise ResultsError(
            f"{name} is not JSON ({error}): give a folder of train --out or Posterior.save, or a "
            f"results.json; {REMEDY}"
        ) from error
    return check(results, name=name)


def check(results: Any, *, name: str = "results") -> dict[str, Any]:
    """Return `results` unchanged, or raise a ResultsError where they are of another format."""
    if not isinstance(results, dict):
        raise ResultsError(f"{name} holds {_shown(results)}, not an object: {REMEDY}")
    found = results.get("format")
    if found != FORMAT or isinstance(found, bool):
        raise ResultsError(
            f"{name} has format {_shown(found)}, and this version of natural-langevin reads "
            f"format {FORMAT}: {REMEDY}"
        )
    return results


@contextmanager
def showing(what: str, remedy: str) -> Iterator[None]:
    """Around drawing and writing: what is missing, or of another kind than it was written, becomes
    a ResultsError."""
    try:
        yield
    except (ImportError, MemoryError, ResultsError):
        raise
    except Exception as error:  # a template's errors too
        raise ResultsError(f"{what} ({type(error).__name__}: {error}): {remedy}") from None


def _shown(value: Any) -> str:
    """The beginning of a value, as JSON writes it."""
    words = json.dumps(value, default=str)
    return words if len(words) < 60 else f"{words[:57]}..."
