"""Pickles of another version: it is said what to do."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest

from natural_langevin.sklearn import NaturalLangevinRegressor, base
from natural_langevin.sklearn.base import NaturalLangevinEstimator
from natural_langevin.tabular import recipe

FAST = {"hidden_layer_sizes": (4,), "steps": 20, "chains": 2, "step_size": 0.005, "folds": 0}
X = np.random.RandomState(0).randn(30, 3)


def test_the_version_is_in_the_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    model = NaturalLangevinRegressor(random_state=0, **FAST).fit(X, X[:, 0])
    with monkeypatch.context() as patch:
        patch.setattr(base, "__version__", "0.0.9")
        text = pickle.dumps(model)
    with pytest.warns(base.OtherVersionWarning, match="natural-langevin==0.0.9") as said:
        again = pickle.loads(text)
    assert len(said) == 1
    assert (again.predict(X) == model.predict(X)).all()
    assert (pickle.loads(pickle.dumps(again)).predict(X) == model.predict(X)).all()  # silently


def test_it_is_said_before_classes_that_are_gone_are_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone:
        """Of a former version."""

    Gone.__module__, Gone.__qualname__ = recipe.__name__, "Gone"
    model: NaturalLangevinEstimator = NaturalLangevinRegressor()
    model.learned_ = Gone()  # type: ignore[assignment]
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[recipe.__name__], "Gone", Gone, raising=False)
        patch.setattr(base, "__version__", "0.0.9")
        text = pickle.dumps(model)
    with (
        pytest.warns(base.OtherVersionWarning, match="natural-langevin==0.0.9"),
        pytest.raises(AttributeError, match="Gone"),
    ):
        pickle.loads(text)
