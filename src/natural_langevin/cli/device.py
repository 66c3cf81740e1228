"""Which device a command runs on."""

from __future__ import annotations

import torch

from natural_langevin.cli.errors import UsageError
from natural_langevin.distributed import join, launched

#: Up to so many columns a table's networks are small: a CPU's engine takes seconds where a GPU
#: waits minutes for launches.
FEW_COLUMNS = 200


def choose_device(name: str, *, columns: int | None = None) -> str:
    """``auto`` is a GPU where there is one, and the CPU for a table of few ``columns``."""
    if name == "auto":
        small = columns is not None and columns <= FEW_COLUMNS
        name = "cuda" if torch.cuda.is_available() and not small else "cpu"
    try:
        found = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}: use auto, cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"no CUDA device was found for --device {name}: use --device cpu")
    if not launched():
        return name
    try:
        return str(join(name).device)  # under torchrun, a GPU of its own
    except ValueError as error:  # NATURAL_LANGEVIN_TIMEOUT
        raise UsageError(str(error)) from None
