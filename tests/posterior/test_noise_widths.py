"""Noise of several widths: learned from rows that are left out, and part of predictions alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, models
from natural_langevin.posterior import calibration
from natural_langevin.posterior.calibration import USUAL, WIDTHS
from short_recipe import changed


def said(targets: Tensor, networks: int = 200, spread: float = 0.05) -> tuple[Tensor, Tensor]:
    """Networks that say about 0 with noise of size 1."""
    g = torch.Generator().manual_seed(1)
    return spread * torch.randn(networks, len(targets), 1, generator=g), torch.ones(networks)


def test_gaussian_residuals_keep_one_width() -> None:
    y = torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    outputs, variance = said(y)
    assert calibration.fit_widths(outputs, y, variance) is None


def test_outputs_that_are_not_numbers_keep_one_width() -> None:
    y = torch.ones(60, 1)
    outputs, variance = said(y)
    outputs[3, 5] = math.nan
    assert calibration.fit_widths(outputs, y, variance) is None


def test_a_mixture_of_two_widths_is_found() -> None:
    """Nine of ten targets have noise of size .63, one of 2.5."""
    g = torch.Generator().manual_seed(0)
    size = torch.where(torch.rand(4000, generator=g) < 0.9, 0.63, 2.5)
    y = (size * torch.randn(4000, generator=g))[:, None]
    outputs, variance = said(y, networks=50)
    found = calibration.fit_widths(outputs, y, variance)
    assert found is not None
    narrow, wide = sum(found.weights[:USUAL]), sum(found.weights[USUAL + 1 :])
    assert narrow == pytest.approx(0.9, abs=0.1)
    assert wide == pytest.approx(0.1, abs=0.05)

    def mean_density(weights: list[float]) -> float:
        scales = torch.tensor(WIDTHS)[:, None]
        law = torch.distributions.Normal(0.0, scales).log_prob(y[:, 0])
        return float(torch.logsumexp(law + torch.tensor(weights).log()[:, None], 0).mean())

    # Targets may be numbers as well as rows of one: networks that end with a squeeze say such.
    assert calibration.fit_widths(outputs[..., 0], y[:, 0], variance) == found
    truth = [0.9 * (c == 0.63) + 0.1 * (c == 2.5) for c in WIDTHS]
    assert mean_density(found.weights) > mean_density(truth) - 0.01


def test_a_row_is_weighed_without_what_was_learned_from_it() -> None:
    """Every network fits one row of its own: in the sample narrow noise would be best, and left
    out no width is too small."""
    g = torch.Generator().manual_seed(0)
    y = torch.randn(60, 1, generator=g)
    outputs, variance = said(y, networks=60, spread=0.5)
    close = outputs.clone()
    close[torch.arange(60), torch.arange(60)] = y
    found = calibration.fit_widths(close, y, variance)
    assert found is None or sum(found.weights[: USUAL - 1]) < 0.1


def test_noise_that_would_be_larger_in_all_is_not_believed() -> None:
    y = 3 * torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    assert calibration.fit_widths(*said(y)[:1], y, said(y)[1]) is None


def test_every_width_has_its_part_of_every_chain() -> None:
    weights = [0.1, 0.0, 0.3, 0.5, 0.0, 0.1, 0.0]
    found = calibration.width_factors(weights, [0, 2], 200)
    for chain in found.reshape(2, 200):
        for width, weight in zip(WIDTHS, weights, strict=True):
            part = float(torch.isclose(chain, torch.full_like(chain, width**2)).double().mean())
            assert part == pytest.approx(weight, abs=0.015)
    assert torch.equal(calibration.width_factors(weights, [2], 200), found[200:])


@pytest.mark.parametrize("wrong", [[1.0], [0.0] * 7, [math.nan] * 7, "usual", [-1.0] + [1.0] * 6])
def test_wrong_weights_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="noise_widths"):
        calibration.check_widths(wrong)


def test_predictions_have_the_widths_and_the_plain_mixture_has_not() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 1, generator=g)
    y = x + 0.3 * torch.randn(80, 1, generator=g)
    sampler = Langevin(
        models.mlp(1, 1, (8,), activation=nn.Tanh), likelihoods.Gaussian("rmse"), chains=2,
        step_size=1e-3,
    )  # fmt: skip
    posterior = sampler.sample((x, y), 400, burn_in=200, thin=2, progress=False)
    assert "noise_widths" not in posterior.config  # a step size of one's own: nothing is open
    before = posterior.predict(x)
    posterior.config |= {"noise_widths": [0.0, 0.0, 0.5, 0.0, 0.5, 0.0, 0.0]}
    after = posterior.predict(x)
    assert torch.equal(after.mean, before.mean)
    assert torch.equal(after.epistemic, before.epistemic)
    factor = 0.5 * 0.63**2 + 0.5 * 1.6**2
    # 100 draws of each chain: each width is within two of its half.
    assert torch.allclose(after.aleatoric, factor * before.aleatoric, rtol=0.03)
    plain = posterior.predict(x, sharpness=1.0)
    assert torch.equal(plain.aleatoric, before.aleatoric)
    last = posterior.predict(x, estimate="last").aleatoric
    assert torch.allclose(last, before.aleatoric)  # of one width
    assert posterior.evaluate(x, y).nll != posterior.evaluate(x, y, sharpness=1.0).nll


@pytest.mark.parametrize("rows", [6, 12, 30])
def test_few_rows_make_the_noise_a_student_s(rows: int) -> None:
    """Up to three widths from the centre, where seven of them still stand for all."""
    weights = torch.tensor(calibration.widths_of_few(rows), dtype=torch.float64)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-3)
    z = torch.linspace(0, 3, 13, dtype=torch.float64)
    widths = torch.tensor(calibration.WIDTHS, dtype=torch.float64)
    each = torch.distributions.Normal(0.0, widths).log_prob(z[:, None]).exp()
    wanted = torch.distributions.StudentT(calibration.FREEDOM * rows).log_prob(z).exp()
    torch.testing.assert_close(each @ weights, wanted.double(), rtol=0.08, atol=2e-3)


def test_six_rows_of_noise_are_not_known_exactly() -> None:
    """A network comes close to all of them, and learns next to no noise."""
    generator = torch.Generator().manual_seed(1006)
    x = torch.randn(506, 3, generator=generator)[:106]
    torch.randn(3, generator=generator)
    y = torch.randn(506, generator=generator)[:106, None]
    model = models.mlp(3, 1, (20,), seed=0)
    one_part = changed(length={"most": 2000})
    sampler = Langevin(model, likelihoods.Gaussian("rmse"), seed=1, recipe=one_part)
    found = sampler.sample((x[:6], y[:6]), progress=False)
    assert found.sigma is not None
    assert float(found.sigma.max()) < 0.3  # where it is 1
    assert found.config["noise_widths"] == calibration.widths_of_few(6)
    scores, plain = found.evaluate(x[6:], y[6:]), copy.deepcopy(found)
    del plain.config["noise_widths"]
    worse = plain.evaluate(x[6:], y[6:])
    assert scores.nll < 5.0 < worse.nll
