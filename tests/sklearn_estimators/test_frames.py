"""Frames of pandas and polars: what goes in, and that the same kind comes out where asked for."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import AdaBoostClassifier

from natural_langevin.data.table import from_frame
from natural_langevin.sklearn import NaturalLangevinClassifier, NaturalLangevinRegressor

#: The shape and the names of answers do not depend on how long the chains are.
TINY = {"hidden_layer_sizes": (4,), "steps": 16, "chains": 2, "step_size": 0.005, "folds": 0,
        "random_state": 0}  # fmt: skip
COUNT = 24


def columns() -> dict[str, list]:
    rng = np.random.default_rng(0)
    return {
        "a": rng.normal(size=COUNT).tolist(),
        "town": rng.choice(["Rome", "Oslo"], COUNT).tolist(),
        "gap": [1.5, None] * (COUNT // 2),
    }


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.DataFrame(columns(), index=pd.RangeIndex(100, 100 + COUNT, name="row"))


def test_answers_about_a_pandas_frame_have_its_index_and_the_targets_name(frame):
    y = pd.Series(["b", "a"] * (COUNT // 2), name="who")
    model = NaturalLangevinClassifier(**TINY).fit(frame, y)
    plain, p = model.predict(frame), model.predict_proba(frame)
    assert isinstance(plain, np.ndarray)  # as scorers and meta-estimators expect
    assert isinstance(p, np.ndarray)
    assert model.set_output(predict="same") is model
    found = model.predict(frame)
    pd.testing.assert_series_equal(
        found, pd.Series(plain, index=frame.index, name="who"), check_dtype=False
    )
    expected = pd.DataFrame(p, index=frame.index, columns=["a", "b"])
    pd.testing.assert_frame_equal(model.predict_proba(frame), expected)
    pd.testing.assert_frame_equal(model.predict_log_proba(frame), np.log(expected))
    again = pickle.loads(pickle.dumps(model))
    pd.testing.assert_series_equal(again.predict(frame), found)
    assert isinstance(clone(model).fit(frame, y).predict(frame), pd.Series)
    assert isinstance(model.set_output(predict="default").predict(frame), np.ndarray)
    with pytest.raises(ValueError, match=r"predict must be one of .*, got 'list'"):
        model.set_output(predict="list")


def test_several_targets_are_named_columns(frame):
    y = pd.DataFrame({"u": np.arange(COUNT) / 3, "v": np.arange(COUNT) / 2})
    model = NaturalLangevinRegressor(**TINY).fit(frame, y).set_output(predict="same")
    mean, std = model.predict(frame, return_std=True)
    low, high = model.predict_interval(frame)
    for found in (mean, std, low, high):
        assert list(found.columns) == ["u", "v"]
        assert found.index.equals(frame.index)
    assert ((low < mean) & (mean < high)).all(axis=None)
    one = NaturalLangevinRegressor(**TINY).fit(frame, y["u"]).set_output(predict="same")
    assert list(one.predict_quantiles(frame, [0.1, 0.9]).columns) == ["q10", "q90"]
    assert one.predict_quantiles(frame, 0.9)["q90"].equals(
        one.predict_quantiles(frame, [0.1, 0.9])["q90"]
    )
    assert one.predict(frame).name == "u"
    assert isinstance(one.predict(frame.head(0)), pd.Series)


def test_polars_frames_go_in_and_come_out(frame):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    X, y = pl.DataFrame(columns()), pl.Series("who", ["b", "a"] * (COUNT // 2))
    model = NaturalLangevinClassifier(**TINY).fit(X, y)
    same = NaturalLangevinClassifier(**TINY).fit(frame, y.to_list())
    assert np.array_equal(model.predict_proba(X), same.predict_proba(frame))
    assert model.feature_names_in_.tolist() == ["a", "town", "gap"]
    model.set_output(predict="same")
    found = model.predict(X)
    assert isinstance(found, pl.Series)
    assert found.name == "who"
    assert found.to_list() == same.predict(frame).tolist()
    p = model.predict_proba(X)
    assert isinstance(p, pl.DataFrame)
    assert p.columns == ["a", "b"]
    assert isinstance(model.predict(frame), pd.Series)  # the kind of the frame that is asked about
    numbers = NaturalLangevinRegressor(**TINY).fit(X, pl.DataFrame({"u": range(COUNT)}))
    assert numbers.set_output(predict="polars").predict(frame).columns == ["u"]


def test_a_frame_that_has_polars_methods_is_read_without_polars(frame):
    """What is used of polars: ``columns``, ``dtypes`` and ``to_dict(as_series=False)``."""

    class Lookalike:
        columns, dtypes = list(frame.columns), list(frame.dtypes)

        def to_dict(self, *, as_series: bool) -> dict[str, list]:
            assert not as_series
            return columns()

    y = ["b", "a"] * (COUNT // 2)
    model = NaturalLangevinClassifier(**TINY).fit(Lookalike(), y)
    same = NaturalLangevinClassifier(**TINY).fit(frame, y)
    assert np.array_equal(model.predict_proba(Lookalike()), same.predict_proba(frame))


def test_spans_and_periods_of_time_are_read():
    spans = pd.to_timedelta([1, 36], "h")
    periods = pd.period_range("2021-01", periods=2, freq="M")
    found = from_frame(pd.DataFrame({"span": spans, "month": periods})).frame
    assert found["span"].tolist() == pytest.approx([1 / 24, 1.5])
    assert found["month"].dt.month.tolist() == [1, 2]


def test_ordered_classes_keep_their_order(frame):
    y = ["low", "high", "medium"] * (COUNT // 3)
    model = NaturalLangevinClassifier(task="ordinal", **TINY).fit(frame, y)
    assert model.classes_.tolist() == ["low", "medium", "high"]
    assert model._targets(["high", "low", "medium"]).tolist() == [2, 0, 1]
    kinds = pd.Categorical(["z", "a", "m"] * (COUNT // 3), ["z", "m", "a"], ordered=True)
    model = NaturalLangevinClassifier(task="ordinal", **TINY).fit(frame, pd.Series(kinds))
    assert model.classes_.tolist() == ["z", "m", "a"]
    assert model.predict(frame).shape == (COUNT,)
    with pytest.raises(ValueError, match=r"that of ash, elm is not known: give numbers"):
        NaturalLangevinClassifier(task="ordinal", **TINY).fit(frame, ["elm", "ash"] * (COUNT // 2))


def test_labels_and_counts_keep_their_type(frame):
    whole = pd.Series([3, 5] * (COUNT // 2), dtype="Int64")
    assert NaturalLangevinClassifier(**TINY).fit(frame, whole).predict(frame).dtype == np.int64
    counts = np.concatenate([np.zeros(30), np.arange(30)])
    x = np.arange(60.0)[:, None]
    model = NaturalLangevinRegressor(**TINY).fit(x, counts)
    assert model.learned_.outcome.task == "count"
    assert (model.predict_interval(x)[0] >= 0).all()
    asked = NaturalLangevinRegressor(task="regression", **TINY).fit(x, counts)
    assert asked.learned_.outcome.task == "regression"


def test_weights_that_sum_to_one_are_relative(frame):
    """Boosting normalises them; taken as they are, the table would be one row."""
    X = frame[["a"]].to_numpy()
    y = (X[:, 0] > 0).astype(int)
    one = NaturalLangevinClassifier(**TINY).fit(X, y, np.full(COUNT, 1 / COUNT))
    plain = NaturalLangevinClassifier(**TINY).fit(X, y)
    assert np.array_equal(one.predict_proba(X), plain.predict_proba(X))
    estimator = NaturalLangevinClassifier(**TINY | {"steps": 200})
    boosted = AdaBoostClassifier(estimator, n_estimators=2, random_state=0).fit(X, y)
    assert boosted.score(X, y) > 0.75  # which raises where a fit is no better than chance


def test_cells_that_training_never_saw_are_said_once_for_a_column(frame, caplog):
    """A column that was mixed up would otherwise be answered as if all its cells were missing."""
    model = NaturalLangevinClassifier(**TINY).fit(frame, ["b", "a"] * (COUNT // 2))
    caplog.clear()
    model.predict(frame)
    model.predict(frame.assign(gap=None))  # missing cells were in the training rows, too
    assert not caplog.records
    other = frame[:3].assign(a=["low", 2.0, "high"], town=["Rome", "Kyiv", "Lima"])
    model.predict(other)
    assert [r.message for r in caplog.records] == [
        "'a': 2 of 3 cells are no number (first: 'low', row 0), taken as missing",
        "'town': 2 of 3 cells were not seen in training (first: 'Kyiv', row 1), taken as (other)",
    ]


def test_words_in_an_array_say_that_a_frame_takes_them(frame):
    with pytest.raises(ValueError, match=r"could not convert.*give X as a pandas frame"):
        NaturalLangevinClassifier(**TINY).fit(frame.to_numpy(), ["b", "a"] * (COUNT // 2))


def test_numbers_that_came_as_categories_are_categories():
    """As pandas' category type says; new rows may hold the same as plain numbers."""
    rng = np.random.default_rng(0)
    shop, level = rng.integers(0, 4, 120), np.array([3.0, -2.0, 5.0, 0.0])
    X = pd.DataFrame({"shop": pd.Categorical(shop)})
    y = level[shop] + 0.1 * rng.normal(size=120)
    model = NaturalLangevinRegressor(hidden_layer_sizes=(), steps=200, folds=0, random_state=0)
    model.fit(X, y)
    assert model.features_.parts[0].levels == ("0", "1", "2", "3")
    new = pd.DataFrame({"shop": [0, 1, 2, 3]})
    np.testing.assert_allclose(model.predict(new), level, atol=0.5)


def test_weights_of_a_survey_repeat_no_more_rows_than_a_fit_does(frame, recwarn):
    """Whole weights of a million each made tables of as many rows, and weights of a pandas column
    a warning that they could not be written."""
    whole = pd.Series(1e6 + np.arange(COUNT), index=frame.index)
    y = np.arange(float(COUNT))
    large = NaturalLangevinRegressor(**TINY).fit(frame, y, sample_weight=whole)
    exact = NaturalLangevinRegressor(**TINY).fit(frame, y, sample_weight=whole + 0.5)
    assert large.features_ == exact.features_
    assert not recwarn.list


def test_a_frame_after_an_array_is_read_by_its_places(frame):
    """As scikit-learn's estimators do, with their warning; there were no columns x0, x1."""
    x = frame[["a", "gap"]]
    model = NaturalLangevinRegressor(**TINY).fit(x.to_numpy(), np.arange(float(COUNT)))
    with pytest.warns(UserWarning, match="X has feature names, but"):
        found = model.predict(x)
    assert (found == model.predict(x.to_numpy())).all()
