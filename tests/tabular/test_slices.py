"""Calibration by column: right on average does not hide a category that is not."""

import torch

from natural_langevin.tabular.columns import Category, Date, Number
from natural_langevin.tabular.features import Features
from natural_langevin.tabular.quality import ColumnSlices
from natural_langevin.tabular.sureness import sentences

FEATURES = Features(
    (
        Category("zone", ("A", "B")),
        Number("area", 100.0, 20.0, missing=True),
        Date("sold", "%Y", {"days": (0.0, 1.0), "cos of year": (0.0, 1.0)}),
        Number("age", 30.0, 5.0),
    )
)
#: area, two parts of the date, age; whether area is missing; zones A and B.
ROWS = torch.tensor(
    [
        [-1.0, 0, 0, 2.0, 0, 1, 0],
        [0.0, 0, 0, -2.0, 1, 1, 0],
        [3.0, 0, 0, 1.0, 0, 0, 1],
    ]
).double()


def test_every_slice_counts_its_own_rows_over_batches() -> None:
    slices = ColumnSlices(FEATURES)
    assert ROWS.shape[1] == FEATURES.width
    for _ in range(2):
        slices.add(ROWS, torch.tensor([True, False, True]), torch.tensor([0.9, 0.8, 0.7]))
    found = {one["name"]: (one["rows"], one["share"]) for one in slices.result()}
    assert found == {
        "zone A": (4, 0.5),
        "zone B": (2, 1.0),
        "area below 100": (2, 1.0),
        "area above 100": (2, 1.0),
        "missing area": (2, 0.0),
        "age below 30": (2, 0.0),
        "age above 30": (4, 1.0),
    }
    zone = slices.result()[0]
    torch.testing.assert_close(zone["said"], 0.85, rtol=1e-6, atol=0)
    spread = (2 * 0.9 * 0.1 + 2 * 0.8 * 0.2) ** 0.5 / 4
    torch.testing.assert_close(zone["spread"], spread, rtol=1e-6, atol=0)


def test_the_verdict_names_the_column_whose_intervals_miss() -> None:
    """180 of 200 intervals hold the truth, 90 %, but of zone B's 40 only 20."""

    def quality(missed: int) -> dict:
        slices = ColumnSlices(FEATURES)
        x = torch.zeros(200, FEATURES.width).double()
        x[:160, 5], x[160:, 6] = 1, 1
        hit = torch.ones(200, dtype=torch.bool)
        hit[200 - missed :], hit[: 20 - missed] = False, False
        slices.add(x, hit, torch.full((200,), 0.9))
        return {
            "rows": 200,
            "scores": {"coverage": float(hit.double().mean())},
            "intervals": {"half": [1.0, 2.0, 3.0], "blind": 4.0},
            "column_slices": slices.result(),
        }

    assert "too narrow for zone B (50 % of 40 rows instead of 90 %)" in sentences(quality(20))[0]
    assert "as sure as it should be" in sentences(quality(4))[0]
