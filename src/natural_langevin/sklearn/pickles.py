"""Pickled estimators: the version that wrote one, and how another version reads it.

A pickle holds whatever attributes a fit had in the version that made it. Read by another, it may
lack some, or be of classes that are gone. So the version is stored first, before anything that
could fail, and an estimator of another version is tested on one row before it is used.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from sklearn.base import BaseEstimator

from natural_langevin._internal.version import __version__
from natural_langevin.data.table import Table, need_pandas
from natural_langevin.tabular.features import Features
from natural_langevin.tabular.learned import Learned

#: Under which the version stands in an estimator's state.
VERSION = "_natural_langevin_version"


class OtherVersionWarning(UserWarning):
    """An estimator was pickled by another version of the library."""


def begin(kind: type, version: str) -> Any:
    """An empty estimator, which pickle fills afterwards; another version is mentioned here already,
    since what comes next may fail."""
    if version != __version__:
        warnings.warn(_words(kind, version), OtherVersionWarning, stacklevel=2)
    return object.__new__(kind)


def reduced(model: BaseEstimator, state: dict[str, Any]) -> tuple[Any, ...]:
    """How pickle writes the estimator."""
    return begin, (type(model), __version__), state | {VERSION: __version__}


def checked(model: BaseEstimator, version: str | None) -> str | None:
    """After its state was read: settings that a former version did not have get their defaults;
    what another version learned is kept if it can be used, and otherwise only why it cannot, which
    is returned."""
    kind = type(model)
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name != "self" and name not in vars(model):
            setattr(model, name, parameter.default)
    if version == __version__ or "learned_" not in vars(model):
        return None
    try:
        _answer_one(model.features_, model.learned_)
    except Exception as error:  # whatever attributes another version had
        learned = [name for name in vars(model) if name.endswith("_")]
        for name in learned:
            delattr(model, name)
        reason = (
            f"{_words(kind, version)}. What it learned cannot be read here "
            f"({type(error).__name__}: {error}); its settings can"
        )
        warnings.warn(reason, OtherVersionWarning, stacklevel=4)
        return reason
    if version is None:
        warnings.warn(_words(kind, version), OtherVersionWarning, stacklevel=4)
    return None


def _answer_one(features: Features, learned: Learned) -> None:
    """An answer to a row whose cells are all missing."""
    frame = need_pandas().DataFrame({name: [None] for name in features.names})
    x = features.encode(Table("X", frame, "row")).x
    _ = learned.probabilities(x) if learned.outcome.classes else learned.predictive(x).mean


def _words(kind: type, version: str | None) -> str:
    by = (
        "an unknown version of natural-langevin"
        if version is None
        else f"natural-langevin {version}"
    )
    where = "there" if version is None else f"in natural-langevin=={version}"
    return (
        f"this {kind.__name__} was pickled by {by}, and this is {__version__}: answers may differ "
        f"or fail. To be sure, fit it again, or use it {where}"
    )
