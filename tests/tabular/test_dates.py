"""Dates beyond those of the training rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from natural_langevin.data.table import from_frame
from natural_langevin.sklearn import NaturalLangevinRegressor
from natural_langevin.tabular.columns import Category, Date, Number
from natural_langevin.tabular.crossvalidation import pasts
from natural_langevin.tabular.learned import Learned
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Networks
from natural_langevin.tabular.recipe import learn, refit
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.survey import fit_features


def test_intervals_widen_with_the_distance_from_the_last_date() -> None:
    """A trend over 300 days is followed for as long again, ever less sure."""
    rng, days = np.random.default_rng(0), pd.date_range("2023-01-01", periods=60, freq="5D")
    y = np.linspace(0, 3, 60) + 0.2 * rng.normal(size=60)
    model = NaturalLangevinRegressor(
        steps=800, folds=2, noise="constant", activation="relu", random_state=0
    ).fit(pd.DataFrame({"day": days}), y)
    later = days[-1] + pd.to_timedelta([0, 150, 300, 600, 1200], unit="D")
    low, high = model.predict_interval(pd.DataFrame({"day": later}))
    width = high - low
    assert (np.diff(width) > 0).all()
    assert width[-1] > 2 * width[0]
    assert low[2] < 6.0 < high[2]  # where the trend would be after 300 days


def test_a_walk_goes_further_the_later_and_what_was_saved_says_so(tmp_path: Path) -> None:
    """Of a random walk, the past's future is far from what it expected: the drift is learned, only
    rows after the last date have it, and a second fit on later rows moves its beginning."""
    walk = torch.from_numpy(np.random.default_rng(1).normal(size=(80, 1)).cumsum(0))
    x = torch.linspace(-1.7, 1.7, 80).double()[:, None]
    settings = Settings(steps=100, folds=2, noise="constant", activation="relu", hidden=(10,))
    learned = learn(x, walk, "regression", settings, time=0)
    assert learned.drift is not None
    assert learned.drift.last == float(x.max())
    plain = replace(learned, drift=None)
    later = torch.tensor([[0.0], [1.7], [2.7], [3.7]], dtype=torch.float64)
    own, without = learned.predictive(later).std, plain.predictive(later).std
    assert (own[:2] == without[:2]).all()
    assert (own[2:] > without[2:]).all()
    c, h, share = np.array(learned.drift.parts).T
    unit = learned.drift.unit
    expected = share @ (c[:, None] * (np.array([1.0, 2.0]) / unit) ** h[:, None]) ** 2 / share.sum()
    more = (own[2:] ** 2 - without[2:] ** 2) / walk.var(correction=0).numpy()
    np.testing.assert_allclose(more, expected, rtol=0.05)  # shared out over a few networks
    learned.save(tmp_path)
    assert (Learned.load(tmp_path).predictive(later).std == own).all()
    more_rows = torch.cat([x, x + 3.5])
    again = refit(learned, more_rows, torch.cat([walk, walk]))
    assert again.drift is not None
    assert again.drift.last == float(more_rows.max())


@pytest.mark.parametrize("noise", ["poisson", "overdispersed"])
def test_a_drift_of_counts_keeps_their_mean_and_widens_them(noise: str) -> None:
    """Var = m + m^2 (E rate^2 / m^2 - 1), with a log-normal rate of that drift."""
    outcome = Outcome("count", noise)
    outputs = torch.randn(3, 5, outcome.outputs, dtype=torch.float64)
    drift = torch.linspace(0.1, 1.0, 5).double()[:, None]
    plain, wide = (Networks(outputs, None).law(outcome, drift=d) for d in (None, drift))
    torch.testing.assert_close(wide.mean, plain.mean)
    excess = (plain.variance - plain.mean) / plain.mean**2
    expected = plain.mean + plain.mean**2 * ((1 + excess) * (drift**2).exp() - 1)
    torch.testing.assert_close(wide.variance, expected)


def test_the_past_is_what_came_before_whatever_the_rows_order() -> None:
    time = torch.arange(100.0)[torch.randperm(100, generator=torch.Generator().manual_seed(0))]
    for past in pasts(time):
        moment = time[past.seen].max()
        assert bool((time[past.asked] > moment).all())
        torch.testing.assert_close(past.after, time[past.asked] - moment)
    assert [len(past.seen) for past in pasts(time)] == [50, 75]
    assert not pasts(time % 20)


@pytest.mark.parametrize("kind", ["text", "times", "objects"])
def test_the_end_of_a_calendar_is_no_date_and_old_ones_are(kind: str) -> None:
    """Nanoseconds would end in 2262, and begin in 1677."""
    days = [f"{1500 + 10 * k}-03-07" for k in range(40)]
    cells: pd.Series = pd.Series([*days, "9999-12-31", "0001-01-01"])
    if kind == "times":
        cells = pd.Series(cells.to_numpy().astype("datetime64[us]"))
    if kind == "objects":
        cells = pd.Series(cells.to_numpy().astype("datetime64[D]").tolist(), dtype=object)
    rows = from_frame(pd.DataFrame({"d": cells, "n": range(42)}))
    features = fit_features(rows)
    part = features.parts[0]
    assert isinstance(part, Date)
    assert part.missing
    assert features.notices[0].startswith("d: 2 of 42 cells are no date (first: '9999-12-31")
    expected = (np.array(days, dtype="datetime64[D]") - np.datetime64("1970-01-01")).astype(float)
    mean, scale = part.parts["days"]
    found = mean + scale * features.encode(rows).x[:40, 0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert features.encode(rows).x[:, features.inputs()["d"][-1]].tolist() == [0.0] * 40 + [1.0] * 2


@pytest.mark.parametrize(("others", "kind"), [(["S-1", "M-2"] * 20, Category), (range(40), Number)])
def test_one_date_does_not_make_dates_of_a_column(others: list, kind: type) -> None:
    """Spreadsheets make one of a 3-1 among sizes or genes."""
    cells = [*others, pd.Timestamp("2020-03-01")]
    (part,) = fit_features(from_frame(pd.DataFrame({"x": pd.Series(cells, dtype=object)}))).parts
    assert isinstance(part, kind)


def test_dates_of_which_some_are_text_are_all_read() -> None:
    days = pd.date_range("2020-01-01", periods=40)
    cells = [day if day.day < 13 else f"{day:%d.%m.%Y}" for day in days]
    frame = pd.DataFrame({"x": pd.Series(cells, dtype=object)})
    (part,) = fit_features(from_frame(frame)).parts
    assert isinstance(part, Date)
    assert part.read(from_frame(frame).frame["x"]).dt.tz_localize(None).tolist() == days.tolist()
