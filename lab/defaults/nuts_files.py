"""Where the references of NUTS lie: one file for every problem and scale of its prior."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lab.defaults.small import Problem


def stem(problem: Problem) -> str:
    """How the names of a problem's references begin; the scale of the prior follows."""
    return f"{problem.name.replace(' ', '-')}-"


def stored_scale(problem: Problem, folder: Path) -> float | None:
    """The scale of the prior under which NUTS has been run."""
    name = stem(problem)
    found = [float(file.stem.removeprefix(name)) for file in folder.glob(f"{name}*.npz")]
    return min(found, default=None)


def variances(problem: Problem, scale: float) -> dict[str, float]:
    """Of the prior N(0, 2 scale / fan-in), that of every tensor; biases have a fan-in of 1."""
    named = problem.network().named_parameters()
    return {k: 2 * scale / (p[0].numel() if p.ndim > 1 else 1) for k, p in named}


def store(file: Path, found: dict[str, Any]) -> None:
    """A reference, predictions in float32."""
    file.parent.mkdir(parents=True, exist_ok=True)
    small = {k: np.asarray(found[k], np.float32) for k in ("mean", "sd")}
    np.savez_compressed(file, **{**found, **small})
