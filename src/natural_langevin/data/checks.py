"""Checks of data: one tensor or a pair, of equal length and finite; NumPy arrays and pandas frames
as tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from natural_langevin._internal.chains import Batch


def as_tensor(part: Any) -> Any:
    """A tensor of an array, a frame or a series of numbers; anything else as it is.

    Real numbers come in torch's default precision, whole numbers as int64."""
    if isinstance(part, Tensor):
        return _plain(part)
    if not hasattr(part, "__array__"):
        return part
    kinds = "".join(sorted(set(_kinds(part).values())))
    if not kinds or set(kinds) - set("fiub"):
        return part
    real = "f" in kinds or len(set(kinds) - set("iu")) > 1
    dtype = np.float64 if real or bool(_missing(part)) else bool if kinds == "b" else np.int64
    array = part.to_numpy(dtype) if hasattr(part, "to_numpy") else np.asarray(part, dtype)
    # pandas hands out its own memory as read-only, which torch warns of.
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor


def _plain(tensor: Tensor) -> Tensor:
    """The tensor, where it holds a number at every place."""
    kinds = {
        "a nested tensor: use torch.nested.to_padded_tensor(x, 0.0)": tensor.is_nested,
        "a sparse tensor: use x.to_dense()": tensor.layout != torch.strided,
        "a quantized tensor: use x.dequantize()": tensor.is_quantized,
        "a tensor on the meta device, which has no values: load them first": tensor.is_meta,
    }
    for words in (words for words, holds in kinds.items() if holds):
        raise TypeError(f"data must be dense tensors of numbers, got {words}")
    return tensor


def refuse_text(part: Any) -> None:
    """Refuses columns that hold no numbers, and names them; and lists of words."""
    if isinstance(part, list) and part and isinstance(part[0], str):
        wrong = [""]
    else:
        wrong = [str(name) for name, kind in _kinds(part).items() if kind not in "fiub"]
    if wrong and hasattr(part, "columns"):
        raise TypeError(
            f"the columns {wrong[:5]} are not numeric: encode them first (pandas.get_dummies), or "
            "let natural_langevin.sklearn's estimators do it, which take tables as they are"
        )
    if wrong:
        raise TypeError(
            f"a {type(part).__name__} of strings or objects is not numeric: encode its classes as "
            "numbers first, such as y.astype('category').cat.codes or numpy.unique(y, "
            "return_inverse=True)[1]"
        )


def _kinds(part: Any) -> dict[Any, str]:
    """The kinds of numbers of every column, as NumPy's letters; an array is one column."""
    if hasattr(part, "columns") and hasattr(part, "dtypes"):
        return {name: str(getattr(t, "kind", "O")) for name, t in part.dtypes.items()}
    if hasattr(part, "__array__") and not isinstance(part, Tensor):
        return {"": str(getattr(getattr(part, "dtype", None), "kind", "O"))}
    return {}


def _missing(part: Any) -> bool:
    """Whether a pandas object has missing values, which whole numbers cannot show."""
    return hasattr(part, "isna") and bool(np.asarray(part.isna()).any())


def in_memory(data: Any) -> Any:
    """All rows of a Dataset as one batch, as a DataLoader collates them; other data as they are.

    Rows are read once: what augments or does not fit into memory is a DataLoader's."""
    if isinstance(data, TensorDataset):
        return data.tensors
    if isinstance(data, IterableDataset):
        raise TypeError(f"a {type(data).__name__} has no rows to index: give DataLoader(dataset)")
    if isinstance(data, Dataset):
        rows = [data[k] for k in range(len(data))]  # type: ignore[arg-type]
        if not rows:
            raise ValueError("the dataset is empty: give at least one sample")
        return default_collate(rows)
    return data


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
        kind += f" of {len(item)} {sorted({type(part).__name__ for part in item})}"
    raise TypeError(
        f"data must be a pair of tensors (x, y), a tensor y, a Dataset or a DataLoader of "
        f"those, got {kind}: use torch.as_tensor on arrays, DataLoader(rows) on a list of samples"
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
    except (RuntimeError, TypeError) as error:
        packed = "must be Tensor, not" in str(error)
        if isinstance(error, TypeError) and not packed:
            raise
        remedy = ""
        if x.ndim < 2:
            remedy = "; rows of x are samples: x[:, None] for one number each, x[None] for one row"
        elif "dtype" in str(error) or "scalar type" in str(error):  # by the operation that refused
            remedy = f"; x is {x.dtype}: convert it, x.float() for a float32 model"
        elif packed:
            remedy = "; a network of one argument gets all of (x1, x2, y)'s inputs, or a "
            remedy += "dictionary, in it: give the pair (x, y)"
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
