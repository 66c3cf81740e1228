"""The schema of results.json, and one message with all violations.

A shape is a type, a list of one shape (an array of it), or a mapping of keys to shapes; pydantic
holds results against it. A key that ends in "?" may be missing or null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from natural_langevin._internal.checked_json import read_json

FORMAT = 1
NUMBER = float  # integers too; text that reads like one is none
MAYBE = float | None  # null: not measured, or diverged

SPREAD = {"mean": MAYBE, "std?": NUMBER, "values?": [MAYBE]}  # over seeds
SCORES = {"nll": SPREAD, "accuracy": SPREAD, "brier?": SPREAD, "ece?": SPREAD}  # nats, percent
PAPER = {"nll?": NUMBER, "accuracy?": NUMBER}
SHAPE: dict[str, Any] = {
    "format": int,
    "version": str,
    "created": str,
    "commit?": str,
    "machine": dict[str, Any],
    "versions": dict[str, Any],
    "config": dict[str, Any],
    "deviations?": [str],
    "total_seconds?": NUMBER,
    "rows": [
        {
            "method": str,
            "estimate": str,
            "label": str,
            "group?": str,
            "note?": str,
            "settings?": dict[str, Any],
            "train?": SCORES,
            "test": SCORES,
            "seconds?": SPREAD,
            "cost?": NUMBER,
            "paper?": {"train?": PAPER, "test?": PAPER},
        }
    ],
    "selection?": [
        {
            "method": str,
            "label": str,
            "step_sizes": [NUMBER],
            "prior_variances": [NUMBER],
            "columns?": str,  # what the columns are, where they are not prior variances
            "accuracy": [[MAYBE]],
            "nll?": [[MAYBE]],
            "chosen?": {"step_size": NUMBER, "prior_variance?": NUMBER, "dropout_rate?": NUMBER},
        }
    ],
    "curves?": [
        {"method": str, "label": str, "step": [NUMBER], "loss": [MAYBE], "test_nll?": [MAYBE]}
    ],
    "reliability?": [
        {
            "method": str,
            "estimate": str,
            "label": str,
            "confidence": [MAYBE],
            "accuracy": [MAYBE],
            "count": [NUMBER],
        }
    ],
    "ensemble_size?": [{"method": str, "label": str, "size": [NUMBER], "nll": [MAYBE]}],
    "ess?": [{"method": str, "label": str, "draws": NUMBER, "ess": MAYBE}],
    "uncertain?": [
        {
            "index": int,
            "width": int,
            "height": int,
            "pixels": [int],
            "label": int,
            "probabilities": [NUMBER],
            "total": MAYBE,
            "epistemic": MAYBE,
        }
    ],
}
PARALLEL = {  # lists of one section that must be equally long; the first one gives the length
    "selection": ("step_sizes", "accuracy", "nll"),
    "curves": ("step", "loss", "test_nll"),
    "reliability": ("count", "confidence", "accuracy"),
    "ensemble_size": ("size", "nll"),
}
REMEDY = "Write it again with `natural-langevin reproduce`."


class ResultsError(ValueError):
    """Results that this version cannot show; the message says what is wrong and what to do."""


def load_results(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check a results.json; NaN and Infinity, as Python writes them, are accepted."""
    name = Path(path).name
    try:
        results = read_json(Path(path))
    except (OSError, ValueError) as error:  # no file, not UTF-8, or not JSON
        raise ResultsError(
            f"{name} is not JSON ({error}): give a folder of train --out or Posterior.save, or a "
            f"results.json. {REMEDY}"
        ) from error
    return check(results, name=name)


def check(results: Any, *, name: str = "results") -> dict[str, Any]:
    """Return `results` unchanged, or raise one ResultsError that names everything wrong in it."""
    if not isinstance(results, dict):
        raise ResultsError(f"{name} holds {_shown(results)}, not an object. {REMEDY}")
    found = results.get("format")
    if found != FORMAT or isinstance(found, bool):
        raise ResultsError(
            f"{name} has format {_shown(found)}; this version of natural-langevin "
            f"reads format {FORMAT}. {REMEDY}"
        )
    problems = list(islice(_problems(results) or _inconsistent(results), 11))
    if problems:
        shown = problems[:10] + ["and more"] * (len(problems) > 10)
        raise ResultsError(f"{name} cannot be shown:\n  " + "\n  ".join(shown) + f"\n{REMEDY}")
    return results


def _problems(results: Mapping[str, Any]) -> list[str]:
    """What pydantic finds: where, and what it got there."""
    from pydantic import ValidationError

    try:
        _model().model_validate(results)
    except ValidationError as error:
        return [_sentence(**problem) for problem in error.errors()]
    return []


def _sentence(loc: Sequence[int | str], type: str, msg: str, input: Any, **_: Any) -> str:
    where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in loc)[1:]
    return f"{where} is missing" if type == "missing" else f"{where}: {msg}, got {_shown(input)}"


@cache
def _model() -> Any:
    """SHAPE as a pydantic model that converts nothing."""
    from pydantic import create_model

    def kind(shape: Any) -> Any:
        if isinstance(shape, list):
            return list[kind(shape[0])]  # type: ignore[misc]
        if not isinstance(shape, dict):
            return shape
        fields = {
            key.removesuffix("?"): (kind(s) | None, None) if key.endswith("?") else (kind(s), ...)
            for key, s in shape.items()
        }
        return create_model("Part", __config__={"strict": True}, **fields)  # type: ignore[call-overload]

    return kind(SHAPE)


def _inconsistent(results: Mapping[str, Any]) -> Iterator[str]:
    for section, (first, *others) in PARALLEL.items():
        for i, item in enumerate(results.get(section) or ()):
            for other in others:
                if item.get(other) is not None:
                    where = f"{section}[{i}].{other}"
                    yield from _length(item[other], len(item[first]), where)
    for i, item in enumerate(results.get("selection") or ()):
        for key in ("accuracy", "nll"):
            for j, row in enumerate(item.get(key) or ()):
                where = f"selection[{i}].{key}[{j}]"
                yield from _length(row, len(item["prior_variances"]), where)
    for i, item in enumerate(results.get("reliability") or ()):
        for key in ("confidence", "accuracy"):
            if not all(0 <= v <= 1 for v in item[key] if v is not None and math.isfinite(v)):
                yield f"reliability[{i}].{key} holds a value outside 0..1 (fractions, not percent)"
    for i, item in enumerate(results.get("uncertain") or ()):
        where = f"uncertain[{i}].pixels"
        yield from _length(item["pixels"], max(0, item["width"]) * max(0, item["height"]), where)
        if not all(0 <= pixel <= 255 for pixel in item["pixels"]):
            yield f"{where} holds a value outside 0..255"
        if not all(math.isfinite(p) for p in item["probabilities"]):
            yield f"uncertain[{i}].probabilities holds a value that is not finite"


def _length(values: Sequence[Any], expected: int, where: str) -> Iterator[str]:
    if len(values) != expected:
        yield f"{where} has {len(values)} entries where {expected} are expected"


def _shown(value: Any) -> str:
    """The beginning of a value, as JSON writes it."""
    words = json.dumps(value, default=str)
    return words if len(words) < 60 else f"{words[:57]}..."
