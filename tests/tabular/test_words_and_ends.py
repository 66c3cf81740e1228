"""Words that look like numbers or sums, and targets with a probability at their ends."""

import json

import numpy as np
import pytest
import torch

from natural_langevin.data.table import from_frame
from natural_langevin.data.tables import read_training
from natural_langevin.tabular.columns import Category
from natural_langevin.tabular.fit import _without_totals
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Networks, Predictive
from natural_langevin.tabular.scoring import NumberScores
from natural_langevin.tabular.sureness import sentences, usable
from natural_langevin.tabular.survey import fit_features
from natural_langevin.tabular.target import Target, find_target, fit_target, in_order
from natural_langevin.tabular.weighing import HeldOut, weigh

pd = pytest.importorskip("pandas")


def frame(**columns):
    return from_frame(pd.DataFrame(columns))


def training(tmp_path, lines):
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    return read_training(str(path), target="y", drop=set())


def test_limits_without_numbers_between_them_name_groups():
    groups = ["<30", ">30", "NO", "NO"] * 10
    target, _ = find_target(frame(x=np.arange(40.0), y=groups), "y")
    assert (target.task, set(target.classes)) == ("classification", {"<30", ">30", "NO"})
    (part,) = fit_features(frame(group=["<50", ">=50"] * 20)).parts
    assert isinstance(part, Category)
    assert in_order({"<50", ">=50"}) is None  # not by the order of a set


@pytest.mark.parametrize("price", ["$ {}", "($ {})", "€ {}"])
def test_prices_with_a_space_are_numbers_among_which_na_is_missing(tmp_path, price):
    lines = [f"{k},{'NA' if k % 5 == 0 else price.format(k)}" for k in range(40)]
    data = training(tmp_path, ["x,y", *lines])
    assert data.table.frame["y"].isna().sum() == 8
    assert find_target(data.table, "y")[0].task == "regression"


def test_a_column_of_nothing_else_does_not_make_none_a_missing_class(tmp_path):
    lines = [f"{k},none,{('none', 'mild', 'severe')[k % 3]}" for k in range(30)]
    data = training(tmp_path, ["x,comment,y", *lines])
    assert find_target(data.table, "y")[0].classes == ("none", "mild", "severe")


def test_an_average_on_a_scale_is_no_row_that_sums_up_others():
    table = frame(state=["average", *["poor", "good"] * 20], y=np.arange(41.0))
    assert len(_without_totals(table, "y")[0]) == 41
    table = frame(shown=["mean", *["max", "min"] * 20], y=np.arange(41.0))
    assert len(_without_totals(table, "y")[0]) == 40
    assert len(_without_totals(table, "y", {"mean", "max", "min"})[0]) == 41


def test_an_end_that_has_a_probability_is_not_strange():
    outcome = Outcome("regression", "constant", scale=(1.0,), bounded=True, upper=1.0)
    z = torch.tensor([-0.5, 0.5, 2.0, 2.0, 0.0] * 8)
    y = z.clamp(0.0, 1.0).double()[:, None]
    said = Networks(z[None, :, None], torch.tensor([0.01]))
    found = weigh([HeldOut(outcome, [said])], y)
    # Every central interval of a row holds its end; in the middle, the median is y itself.
    torch.testing.assert_close(found.strangeness, torch.zeros(40).double(), atol=1e-6, rtol=0)


def test_a_blind_guess_has_a_probability_where_predictions_have_one():
    """Both are N(0.5, 0.5^2) between 0 and 1, so that neither may look better."""
    outcome = Outcome("regression", "constant", mean=(0.5,), scale=(0.5,), bounded=True, upper=1.0)
    y = torch.tensor([0.0, 0.3, 1.0, 1.0]).double()[:, None]
    law = Networks(torch.zeros(1, 4, 1), torch.ones(1)).law(outcome)

    class Same:
        def predictive(self, x):
            return Predictive(outcome, law, torch.ones(1), flat=True)

    scores = NumberScores(Same(), Target("y", mean=0.5, scale=0.5, task="regression"))
    scores.add(torch.zeros(4, 1), y)
    found = scores.result()
    assert found["scores"]["nll"] == pytest.approx(found["baseline"]["nll"])
    assert found["chance"]["nll"] == pytest.approx(0, abs=1e-9)


def test_a_blind_guess_of_amounts_is_log_normal():
    """As that of the predictions is here: of skewed amounts a normal law is no rival."""
    generator = torch.Generator().manual_seed(0)
    y = (1 + 1.2 * torch.randn(4000, 1, generator=generator, dtype=torch.float64)).exp()
    target = fit_target(frame(y=y[:, 0].numpy()), Target("y", task="regression"))
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target
    outcome = Outcome("regression", "constant", mean=(1.0,), scale=(1.2,), log=True)
    law = Networks(torch.zeros(1, 4000, 1), torch.ones(1)).law(outcome)

    class Same:
        def predictive(self, x):
            return Predictive(outcome, law, torch.ones(1), flat=True)

    scores = NumberScores(Same(), target)
    scores.add(torch.zeros(4000, 1), y)
    found = scores.result()
    assert found["baseline"]["nll"] == pytest.approx(found["scores"]["nll"], abs=0.01)


@pytest.mark.parametrize("log", [False, True])
def test_the_density_and_the_ends_are_one_together_and_nothing_is_beyond(log):
    outcome = Outcome(
        "regression", "constant", mean=(-0.2,), scale=(0.5,), log=log, bounded=not log, upper=1.0
    )
    grid = torch.linspace(0, 1, 4001).double()[1:-1]
    rows = torch.cat([grid, torch.tensor([0.0, 1.0, -0.2, 1.2])])[:, None]
    said = Networks(torch.zeros(1, len(rows), 1), torch.ones(1))
    law = Predictive(outcome, said.law(outcome), torch.ones(1), flat=True)
    density = np.exp(law.log_prob(rows))
    inside = float(torch.trapezoid(torch.as_tensor(density[:-4]), grid))
    assert inside + density[-4:-2].sum() == pytest.approx(1.0, abs=1e-3)
    assert density[-2:].tolist() == [0.0, 0.0]


def test_a_mean_is_bounded_by_what_the_data_support_and_lies_in_its_interval():
    """ln y ~ N(0, 1) of most networks, and N(0, 60^2) of one in a hundred, whose own mean is that
    of half the rows beyond any target."""
    outcome = Outcome("regression", "varying", log=True, largest=20.0)
    noise = torch.zeros(100)
    noise[0] = 2 * np.log(60.0)
    outputs = torch.stack([torch.zeros(100), noise], -1)[:, None]
    found = Predictive(
        outcome, Networks(outputs, None).law(outcome), torch.full((100,), 0.01), flat=True
    )
    assert found.mean[0] == pytest.approx(np.exp(0.5), rel=0.15)  # of all others
    low, high = found.interval(0.99)
    assert low[0] <= found.mean[0] <= high[0]
    assert found.std[0] < 10


@pytest.mark.parametrize(
    ("rmse", "nll", "outside", "error", "said"),
    [
        (2.0, 1.5, 0, 0.2, "Do not use it"),
        (2.0, 1.5, 0, 0.3, "no better than a guess that ignores the inputs, as far as 40 rows"),
        (2.0, 1.5, 0, None, "It predicts no better than a guess"),
        (2.0, None, 0, None, "Do not use it"),
        (2.0, 0.5, 0, 0.1, "use the median and the interval"),
        (0.5, 0.5, 3, 0.1, "In 3 of 40 rows the mean lies outside"),
        (0.5, 0.5, 0, 0.1, None),
    ],
)
def test_what_is_worse_than_a_blind_guess_is_said_first(rmse, nll, outside, error, said):
    quality = {
        "rows": 40,
        "scores": {"rmse": rmse, "nll": nll, "coverage": 0.9},
        "baseline": {"rmse": 1.0, "nll": 1.0},
        "chance": {"nll": error},
        "intervals": {"said": 0.9, "half": [1.0, 2.0, 3.0], "blind": 4.0, "mean_outside": outside},
    }
    words = sentences(quality)
    assert len(words) == (2 if said is None else 3)
    assert said is None or said in words[0]
    assert bool(usable(quality)) == (said is None)


def test_a_network_that_runs_away_does_not_carry_the_mean_with_it():
    """Targets from 0 to 10; one network of two hundred says 1e6, and counts as 20."""
    outcome = Outcome("regression", "constant", ends=((0.0, 10.0),))
    outputs = torch.full((200, 1, 1), 5.0)
    outputs[7] = 1e6
    law = Networks(outputs, torch.ones(200)).law(outcome)
    found = Predictive(outcome, law, torch.full((200,), 1 / 200), flat=True)
    assert found.mean[0] == pytest.approx(5 + 15 / 200)
    assert found.epistemic[0] == pytest.approx((1e6 - 5) ** 2 * 199 / 200**2)  # and is no secret
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome
