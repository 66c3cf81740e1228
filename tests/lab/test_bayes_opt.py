"""One round of Bayesian optimisation by either model."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import bayes_opt

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours


@pytest.mark.parametrize("method", bayes_opt.METHODS)
def test_a_round(method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("botorch")
    monkeypatch.setattr(bayes_opt, "STEPS", 40)
    row = bayes_opt.optimise("Branin", method, 0, rounds=1)
    regret = row["regret"]
    assert len(regret) == row["first"] + bayes_opt.TOGETHER == 8
    assert regret == sorted(regret, reverse=True)
    assert regret[-1] > 0
    bayes_opt.draw({"rows": [row]}, tmp_path / "regret.png")
    assert (tmp_path / "regret.png").stat().st_size > 1000
