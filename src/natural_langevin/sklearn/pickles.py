"""Pickled estimators belong to the version that wrote them; another version says so.

The version is the first thing in a pickle: the warning comes before anything that could fail.
"""

from __future__ import annotations

import warnings
from typing import Any

from sklearn.base import BaseEstimator

from natural_langevin._internal.version import __version__


class OtherVersionWarning(UserWarning):
    """An estimator was pickled by another version of the library."""


def begin(kind: type, version: str) -> Any:
    """An empty estimator, which pickle fills afterwards."""
    if version != __version__:
        warnings.warn(
            f"this {kind.__name__} was pickled by natural-langevin {version}, and this is "
            f"{__version__}: answers may differ or fail. To be sure, fit it again, or use it in "
            f"natural-langevin=={version}",
            OtherVersionWarning,
            stacklevel=2,
        )
    return object.__new__(kind)


def reduced(model: BaseEstimator, state: dict[str, Any]) -> tuple[Any, ...]:
    """How pickle writes the estimator."""
    return begin, (type(model), __version__), state
