"""The tables of lab/notes/scale.md are those of the model and of the committed measurements."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "lab" / "notes" / "scale.md").read_text()
MEASURED = json.loads((ROOT / "results" / "scale-cpu.json").read_text())


def test_the_table_of_the_model() -> None:
    from lab import scale_model

    assert scale_model.table() in PAGE


def test_the_table_of_the_measurements() -> None:
    from lab import scale

    assert scale.table(MEASURED) in PAGE


def test_bytes_are_those_of_the_model() -> None:
    """Of every metric and number of processes, counted in the runs."""
    assert {row["processes"] for row in MEASURED["rows"]} == {1, 2, 4}
    for row in MEASURED["rows"]:
        assert row["bytes"] == row["bytes_of_model"]


def test_the_state_is_what_the_model_counts() -> None:
    """But for biases, which have no bias row."""
    from lab import scale_model

    for row in MEASURED["rows"]:
        kept, _ = scale_model.METRICS[row["metric"]]
        biases = 810 if row["metric"] == "QuasiDiagonalFisher" else 0
        assert row["state_bytes"] == 4 * ((2 + kept) * row["parameters"] - biases)
