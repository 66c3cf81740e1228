"""The audit's table: rows as they come, errors among them, gone on with; a law, a provocation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import audit


def test_rows_are_kept_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []

    def good() -> audit.Row:
        runs.append(1)
        return {"figures": {"sd": 0.9}, "goal": "10 %", "met": True, "said": []}

    def bad() -> audit.Row:
        raise ValueError("all chains diverged")

    def silent() -> audit.Row:
        return {"figures": {"sd": 0.5}, "goal": "10 %", "met": False}

    def part(seeds: int, sets: int) -> Iterator[audit.Case]:
        yield from (("good", good), ("bad", bad), ("silent", silent))

    monkeypatch.setattr(audit, "PARTS", {"errors": part})
    out = tmp_path / "audit.json"
    for _ in range(2):
        audit.main(["--parts", "errors", "--out", str(out)])
    assert len(runs) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| errors")]
    assert lines[0] == "| errors | good | sd 0.9 | 10 % | yes |  |"
    assert "**no** | all chains diverged |" in lines[1]
    assert lines[2].endswith("| **no** | silent |")
    assert list(json.loads(out.read_text())["rows"]) == [
        "errors: good", "errors: bad", "errors: silent",
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        audit.main(["--parts", "nothing"])


def test_a_variance_in_two_modes_is_said() -> None:
    row = dict(audit.provocations(1, 2))["a variance in two modes"]()
    assert row["met"], row


def test_a_linear_models_law_is_right_or_said() -> None:
    row = dict(audit.laws(1, 2))["linear model, seed 0"]()
    assert row["met"], row
