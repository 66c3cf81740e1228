"""Which device a command runs on."""

from __future__ import annotations

import torch

from natural_langevin.cli.errors import UsageError
from natural_langevin.distributed import join, launched


def choose_device(name: str) -> str:
    """``auto`` is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}: use auto, cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"no CUDA device here, so --device {name} cannot be had: use --device cpu")
    if not launched():
        return name
    try:
        return str(join(name).device)  # under torchrun, a GPU of its own
    except ValueError as error:  # NATURAL_LANGEVIN_TIMEOUT
        raise UsageError(str(error)) from None
