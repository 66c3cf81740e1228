"""Checks of data: one tensor or a pair, of equal length and finite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal.chains import Batch
from natural_langevin.data.arrays import as_tensor


def split_pair(item: Any) -> Batch:
    """(x, y); with y alone, (None, y) or (y,), the network sees y itself (unsupervised).

    NumPy arrays, and pandas frames and series of numbers, are taken for the tensors they hold, real
    numbers in torch's default precision."""
    if isinstance(item, Tensor):
        return as_tensor(item), item
    if isinstance(item, (tuple, list)):
        tensors = [as_tensor(part) for part in item if part is not None]
        if len(tensors) in (1, 2) and all(isinstance(part, Tensor) for part in tensors):
            return tensors[0], tensors[-1]
    kind = type(item).__name__
    if isinstance(item, (tuple, list)):
        kind += f" of {[type(part).__name__ for part in item]}"
    raise TypeError(
        f"data must be a pair of tensors (x, y), a tensor y, a TensorDataset or a DataLoader of "
        f"those, got {kind}: use torch.as_tensor on arrays"
    )


def check_pair(x: Tensor, y: Tensor) -> None:
    """Refuses x and y of different lengths, or with values that are not finite."""
    check_finite("x", x)
    check_finite("y", y)
    if len(x) != len(y):
        raise ValueError(f"x and y must have the same length, got {len(x)} and {len(y)}")


@contextmanager
def shown_to_model(x: Tensor) -> Iterator[None]:
    """Around a call of the model: torch's error about inputs becomes one that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        remedy = ""
        if x.ndim < 2:
            remedy = "; rows of x are samples: x[:, None] for one number each, x[None] for one row"
        elif "dtype" in str(error) or "scalar type" in str(error):  # by the operation that refused
            remedy = f"; x is {x.dtype}: convert it, x.float() for a float32 model"
        raise ValueError(
            f"the model cannot take x of shape {tuple(x.shape)}: "
            f"{str(error).partition('Exception raised')[0].strip()}{remedy}"
        ) from error


def check_finite(name: str, value: Tensor) -> None:
    """Refuses NaN and infinities, saying in which samples, and numbers whose squares are."""
    if not value.is_floating_point() or not value.numel():
        return
    largest, most = float(value.abs().max()), math.sqrt(torch.finfo(value.dtype).max)
    if largest <= most:
        return
    if largest < math.inf:
        raise ValueError(
            f"{name} holds values up to {largest:.3g}, whose squares overflow {value.dtype} "
            f"(beyond {most:.2g}): standardise it, or remove values that are not measurements"
        )
    flat = torch.isfinite(value.reshape(len(value), -1)).all(1)
    rows = (~flat).nonzero().flatten().tolist()
    raise ValueError(
        f"{name} holds NaN or infinite values in {len(rows)} of {len(value)} samples "
        f"(first: {rows[:5]}): remove or impute them"
    )
