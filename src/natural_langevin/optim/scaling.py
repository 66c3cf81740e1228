"""Loss scaling: what a GradScaler multiplied the loss by, and whether it overflowed.

Squares of gradients carry the square of that factor, so it must be known even where the gradients
themselves have been divided by it already (``scaler.unscale_``, before clipping).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer


class Scale(NamedTuple):
    """What gradients and output gradients have been multiplied by."""

    gradient: float = 1.0
    statistics: float = 1.0
    known: bool = True  # what output gradients have been multiplied by


class Scaling:
    """``scaler`` is the user's GradScaler, where they gave it."""

    def __init__(self, scaler: Any = None) -> None:
        if scaler is not None and not hasattr(scaler, "get_scale"):
            raise TypeError(f"scaler must be a torch.amp.GradScaler, got {scaler!r}")
        self.scaler = scaler

    def read(self, optimizer: Optimizer, *, statistics: bool) -> Scale | None:
        """The factors of this step; None where it must be skipped.

        ``GradScaler.step`` sets ``found_inf`` and ``grad_scale`` before it calls ``step``; the
        latter is None when the gradients are to scale already."""
        found: Tensor | None = getattr(optimizer, "found_inf", None)
        if found is None:
            return Scale()
        if float(found) != 0:
            return None
        scale = getattr(optimizer, "grad_scale", None)
        gradient = 1.0 if scale is None else float(scale)
        if self.scaler is not None:
            return Scale(gradient, float(self.scaler.get_scale()))
        if scale is None and statistics:
            raise RuntimeError(
                "scaler.unscale_(optimizer) has brought the gradients to scale, but squares of "
                "per-sample gradients are still scaled by an unknown factor: give "
                "NaturalLangevin(..., scaler=scaler)"
            )
        return Scale(gradient, gradient, known=scale is not None)
