"""The audit's table: rows as they come, errors among them, gone on with; a law, a provocation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lab import audit
from lab.defaults import gaps


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

    monkeypatch.setattr(audit, "PARTS", {"laws": part})
    out = tmp_path / "audit.json"
    for _ in range(2):
        audit.main(["--parts", "laws", "--out", str(out)])
    assert len(runs) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| laws")]
    assert lines[0] == "| laws | good | sd 0.9 |  | 10 % | yes |  |"
    assert "**no** | all chains diverged |" in lines[1]
    assert lines[2].endswith("| **no** | silent |")
    assert list(json.loads(out.read_text())["rows"]) == [
        "laws: good", "laws: bad", "laws: silent",
    ]  # fmt: skip
    audit.main(["--parts", "laws", "--out", str(out), "--again", "--only", "goo"])
    assert len(runs) == 2
    assert json.loads(out.read_text())["rows"]["laws: good"]["before"] == {"sd": 0.9}
    with pytest.raises(SystemExit):
        audit.main(["--parts", "nothing"])


def test_a_variance_in_two_modes_is_said() -> None:
    row = dict(audit.provocations(1, 2))["a variance in two modes"]()
    assert row["met"], row


def test_a_linear_models_law_is_right_or_said() -> None:
    row = dict(audit.laws(1, 2))["linear model, seed 0"]()
    assert row["met"], row


@pytest.mark.thorough  # tests/diagnostics/test_funnel.py is the cheap one
def test_a_centred_hierarchy_is_recognised() -> None:
    row = dict(audit.provocations(1, 2))["centred eight schools"]()
    assert any("non-centred" in text for text in row["said"])


def test_spread_over_error_is_of_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def reported(network: object, steps: int, seed: int) -> dict[str, object]:
        value = torch.tensor([float(seed), 2.0 * seed])
        return {"mean": value, "error": torch.ones(2), "nll": seed, "nll_error": 2.0, "rhat": 1.0}

    monkeypatch.setattr(audit, "_reported", reported)
    figures = audit.spread_over_error(torch.nn.Identity, 10, 3)["figures"]
    assert (figures["median"], figures["nll"]) == (1.0, 0.5)  # lower median of 1 and 2


def test_which_rows_are_beyond() -> None:
    problem = gaps.gap()
    there = gaps.beyond(problem)
    inside = problem.x_test[:, 0].abs() < 0.6
    assert bool(there[inside].all())
    assert not bool(there[(problem.x_test[:, 0].abs() - 1.2).abs() < 0.1].any())
    assert {p().likelihood.outputs_per_target for p in gaps.GAPS} == {1, 2}
