"""Dates beyond those of the training rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from natural_langevin.sklearn import NaturalLangevinRegressor


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
