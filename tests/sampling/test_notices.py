"""What is most likely a mistake is said once, with the remedy, and the run goes on."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners
from natural_langevin.likelihoods import Likelihood

RUN = {"steps": 4, "batch_size": 10, "progress": False}


def rows(scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = scale * torch.randn(30, 3, generator=generator)
    return x, (x[:, 0] > 0).long()


def said(
    caplog: pytest.LogCaptureFixture, model: nn.Module, likelihood: Likelihood, data: object
) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "natural_langevin"):
        sampler = Langevin(model, likelihood, step_size=1e-4, chains=2)
        for _ in range(2):  # the second time nothing is said again
            sampler.sample(data, **RUN)  # type: ignore[arg-type]
    return [record.getMessage() for record in caplog.records]


def network(*behind: nn.Module, outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs), *behind)


def test_a_run_without_mistakes_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    x, y = rows()
    assert said(caplog, network(), likelihoods.Categorical(), (x, y)) == []
    assert said(caplog, network(nn.LogSoftmax(-1)), likelihoods.Categorical(), (x, y)) == []
    sigma = likelihoods.Gaussian(sigma=0.5)
    assert said(caplog, network(outputs=1), sigma, (x, x[:, :1])) == []


def test_a_metric_of_one_row_is_no_curvature(caplog: pytest.LogCaptureFixture) -> None:
    """As when a density is given as the loss of one row: at its mode the gradient is zero."""
    x, y = rows()
    for metric, count in ((None, 1), (preconditioners.Euclidean(), 0)):
        caplog.clear()
        sampler = Langevin(
            network(), likelihoods.Categorical(), preconditioner=metric, step_size=1e-4
        )
        sampler.sample((x[:1], y[:1]), **RUN | {"batch_size": 1})  # type: ignore[arg-type]
        assert sum("only one vanish" in m for m in caplog.messages) == count


@pytest.mark.parametrize(
    ("model", "likelihood", "data", "wanted"),
    [
        (network(nn.Softmax(-1)), likelihoods.Categorical(), rows(), "than 73%. Remove the Softm"),
        (network(nn.Sigmoid(), outputs=1), likelihoods.Bernoulli(), rows(), "Remove the Sigmoid"),
        (
            nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval(),
            likelihoods.Categorical(),
            rows(),
            r"['1'] have never seen data",
        ),
        (network(), likelihoods.Categorical(), rows(100.0), "inputs x are of size 1"),
        (
            network(outputs=1),
            likelihoods.Gaussian(sigma=5.0),
            (rows()[0], 500 + 20 * rows()[0][:, :1]),
            "the targets y are of size 50",
        ),
        (
            network(outputs=1),
            likelihoods.Gaussian(sigma=1e-4),
            (rows()[0], 1e-3 * rows()[0][:, :1]),
            "vary by 0.00",
        ),
    ],
    ids=["softmax", "sigmoid", "batchnorm", "inputs", "targets", "small targets"],
)
def test_each_is_said_once(
    caplog: pytest.LogCaptureFixture, model: nn.Module, likelihood: Likelihood, data, wanted: str
) -> None:
    found = [text for text in said(caplog, model, likelihood, data) if wanted in text]
    assert len(found) == 1, caplog.messages


def test_a_network_that_scales_its_inputs_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    x, y = rows(100.0)
    norm = nn.BatchNorm1d(3)
    norm(x)
    model = nn.Sequential(norm, *network()).eval()
    assert said(caplog, model, likelihoods.Categorical(), (x, y)) == []


def test_a_network_without_an_engine_says_what_it_does_before_its_first_step(
    capsys, monkeypatch
) -> None:
    """Minutes may pass until then. Where seconds do, not a word; nor where it was not asked for."""

    class HereItWouldChooseError(Exception):
        pass

    def choose(*_: object, **__: object) -> None:
        raise HereItWouldChooseError

    monkeypatch.setattr("natural_langevin.recipe.decide.decide", choose)
    x, y = torch.rand(40, 1, 4, 4), torch.arange(40) % 2
    norm = nn.GroupNorm(1, 2)
    images = nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), nn.Linear(8, 2))
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    rows = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    said = []
    for model, progress, options in (
        (images, "digits", {}), (images, False, {}), (rows, True, {}), (plain, True, {}),
        (images, True, {"step_size": 1e-3}),
    ):  # fmt: skip
        sampler = Langevin(model, likelihoods.Categorical(), chains=2, **options)
        with pytest.raises(HereItWouldChooseError):
            sampler.sample((x, y), steps=20, progress=progress)
        said.append(capsys.readouterr().err.partition(": choosing the prior's scale")[0])
    assert said == ["digits", "", "", "", ""]


@pytest.mark.parametrize("likelihood", [likelihoods.Gaussian(sigma=0.5), likelihoods.Poisson()])
def test_targets_without_the_axis_of_the_outputs(
    caplog: pytest.LogCaptureFixture, likelihood: Likelihood
) -> None:
    """p.mean - y would silently be (n, n)."""
    x, y = rows()
    found = said(caplog, network(outputs=1), likelihood, (x, y.float()))
    assert len(found) == 1
    assert "p.mean.squeeze(-1)" in found[0]
    assert said(caplog, network(outputs=1), likelihood, (x, y.float().unsqueeze(-1))) == []
    flat = network(nn.Flatten(0), outputs=1)
    assert said(caplog, flat, likelihood, (x, y.float())) == []
