"""Pickles of another version: they work, or it is said what to do."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from natural_langevin.sklearn import NaturalLangevinClassifier, NaturalLangevinRegressor, pickles
from natural_langevin.sklearn.base import NaturalLangevinEstimator
from natural_langevin.tabular import recipe

FAST = {"hidden_layer_sizes": (4,), "steps": 20, "chains": 2, "step_size": 0.005, "folds": 0}
X = np.random.RandomState(0).randn(30, 3)
KINDS = [NaturalLangevinClassifier, NaturalLangevinRegressor]


def fitted(kind: type) -> Any:
    y = X[:, 0] > 0 if kind is NaturalLangevinClassifier else X[:, 0]
    return kind(random_state=0, **FAST).fit(X, y)


def from_before(model: Any, **changes: Any) -> Any:
    """As it is read from a pickle that says nothing of its version."""
    state = copy.copy(vars(model)) | changes
    again = type(model).__new__(type(model))
    again.__setstate__({k: v for k, v in state.items() if v is not None})
    return again


@pytest.mark.parametrize("kind", KINDS)
def test_what_lacks_attributes_says_so_and_can_be_fitted_again(kind: type) -> None:
    model = fitted(kind)
    learned = copy.copy(model.learned_)
    del vars(learned)["scales" if kind is NaturalLangevinClassifier else "members"]
    with pytest.warns(pickles.OtherVersionWarning, match="fit it again"):
        again = from_before(model, learned_=learned)
    with pytest.raises(NotFittedError, match=r"fit it again.*no attribute '(scales|members)'"):
        again.predict(X)
    with pytest.raises(NotFittedError, match="fit it again"):
        _ = again.posterior_
    assert again.get_params() == model.get_params()
    again.fit(X, X[:, 0] > 0)
    assert len(again.predict(X)) == 30


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_used_is_used(kind: type) -> None:
    model = fitted(kind)
    with pytest.warns(pickles.OtherVersionWarning, match="by an unknown version"):
        again = from_before(model, _target_names=None)
    assert (again.predict(X) == model.predict(X)).all()


def test_settings_that_are_new_have_their_defaults() -> None:
    again = from_before(NaturalLangevinRegressor(steps=7), noise=None, log=None)  # not fitted
    assert again.get_params() == NaturalLangevinRegressor(steps=7).get_params()


def test_the_version_is_in_the_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(NaturalLangevinRegressor)
    with monkeypatch.context() as patch:
        patch.setattr(pickles, "__version__", "0.0.9")
        text = pickle.dumps(model)
    with pytest.warns(pickles.OtherVersionWarning, match="natural-langevin==0.0.9") as said:
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
        patch.setattr(pickles, "__version__", "0.0.9")
        text = pickle.dumps(model)
    with (
        pytest.warns(pickles.OtherVersionWarning, match="natural-langevin==0.0.9"),
        pytest.raises(AttributeError, match="Gone"),
    ):
        pickle.loads(text)
