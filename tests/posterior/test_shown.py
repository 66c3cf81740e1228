"""What a notebook and a console show of results: short, whole, and never obeyed."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import small_run
from html_reader import Reader
from natural_langevin import Posterior
from natural_langevin.evidence.marginal import Comparison, Evidence
from natural_langevin.slt.wbic import FreeEnergy


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    return small_run.sample(60)


def texts(page: str) -> str:
    """What a reader sees; every tag is closed, and nothing is executed."""
    tags = {tag for tag, _, _ in Reader(page).elements}
    assert tags <= {"div", "b", "table", "tr", "td", "th", "p"}
    return re.sub(r"<[^>]*>", " ", page)


def test_a_posterior(posterior: Posterior) -> None:
    seen = texts(posterior._repr_html_())
    assert "2 chains x 56 draws of 26 weights" in seen
    assert f"step_size {posterior.config['step_size']}".replace(" ", "") in seen.replace(" ", "")
    posterior = small_run.sample(60)
    posterior.diverged[1] = 7
    assert "Chain 1 diverged at step 7." in texts(posterior._repr_html_())


def test_a_plan_has_every_line_whole(posterior: Posterior) -> None:
    plan = posterior.plan
    assert plan is not None
    seen = texts(plan._repr_html_())
    for line in str(plan).splitlines()[1:]:
        assert line.split()[0] in seen
    assert "[...]" not in str(plan)  # what does not fit is cut, not left out
    assert "Gaussian(variance=0.1" in seen


@pytest.mark.parametrize("count", [3, 25])
def test_predictions(posterior: Posterior, count: int) -> None:
    found = posterior.predict(small_run.data()[0][:count])
    seen = texts(found._repr_html_())
    shown = min(count, 10)
    assert all(f"{v:.4g}" in seen for v in found.mean[:shown].flatten().tolist())
    assert f"{found.epistemic[0]:.4g}" in seen
    assert ("15 inputs more" in seen) == (count == 25)


def test_scores_and_a_diagnosis(posterior: Posterior) -> None:
    x, y = small_run.data()
    scores, found = posterior.evaluate(x, y), posterior.diagnose(x, held_out=(x, y), beyond=False)
    for line in str(scores).splitlines()[1:8]:
        name, value = re.split(r"\s{2,}", line.strip())[:2]
        assert name in texts(scores._repr_html_())
        assert value in texts(scores._repr_html_())
    seen = texts(found._repr_html_())
    assert len(repr(found)) < 300
    assert "array(" not in repr(found)
    assert repr(found.mixing) == f"Mixing({found.mixing})"
    assert str(found.mixing) in seen
    for verdict in found.verdicts:
        assert verdict in seen.replace("&#x27;", "'").replace("&quot;", '"')
    assert "Are the predictions usable?" in seen


def test_estimates(posterior: Posterior) -> None:
    energy = FreeEnergy(12.5, 0.25, torch.zeros(2, 3), posterior)
    assert str(energy) in texts(energy._repr_html_())
    ends = torch.tensor([0.0, 1.0])
    found = Evidence(-41.5, 0.5, -44.0, ends, ends, ends, [0.4], 0, posterior)
    seen = texts(found._repr_html_())
    assert all(line in seen for line in str(found).splitlines())
    assert "2.5 nats apart" in seen
    table = Comparison(("<script>alert(1)</script>", "\x1b[2J"), (found, found))
    seen = texts(table._repr_html_())
    assert "\x1b" not in seen
    assert "&lt;script&gt;" in seen
    assert "-41.50 ± 0.5" in seen


def test_a_hostile_name_is_shown_and_not_obeyed() -> None:
    class Evil(nn.Linear):
        pass

    Evil.__name__ = "<img src=x onerror=alert(1)>\x1b[2J"
    posterior = small_run.sample(8, sampler={"model": nn.Sequential(Evil(3, 2))})
    posterior.config = posterior.config | {"step_size": "<script>\x1b"}
    page = posterior._repr_html_()
    assert "<script>" not in page
    assert "\x1b" not in page
