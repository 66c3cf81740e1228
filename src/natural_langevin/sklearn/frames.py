"""Predictions as pandas or polars columns, if requested by ``set_output``."""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

#: What ``set_output(predict=...)`` takes.
OUTPUTS = ("default", "same", "pandas", "polars")


def is_frame(X: Any) -> bool:
    """Whether it is a pandas or polars frame: something with named columns of their own types."""
    return hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "to_dict")


def kind_of(X: Any) -> str:
    """What ``X`` is: "pandas", "polars" or "array"."""
    if not is_frame(X):
        return "array"
    return "pandas" if hasattr(X, "iloc") else "polars"


def answer(values: Array, X: Any, output: str, names: Sequence[Any]) -> Any:
    """``values`` (n,) or (n, k) about the rows of ``X``: as they are with ``output`` "default",
    else as a column or as k columns of these names, with the index of a pandas frame."""
    kind = kind_of(X) if output == "same" else output
    if kind in ("default", "array") or values.ndim > 2:
        return values
    if kind == "pandas":
        import pandas as pd

        index = X.index if kind_of(X) == "pandas" else None
        if values.ndim == 1:
            return pd.Series(values, index=index, name=names[0])
        return pd.DataFrame(values, index=index, columns=list(names))
    import polars as pl

    if values.ndim == 1:
        return pl.Series(str(names[0]), values)
    return pl.DataFrame({str(name): values[:, k] for k, name in enumerate(names)})


def name_of(y: Any) -> list[Any]:
    """The names of targets that came as a column or a frame; [] of arrays."""
    if hasattr(y, "columns"):
        return list(y.columns)
    return [y.name] if getattr(y, "name", None) is not None else []
