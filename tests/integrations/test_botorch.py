"""A posterior as BoTorch's model: gradients, joint draws, acquisition, conditioning."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import small_run
from natural_langevin import Langevin, Posterior, likelihoods

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours


def hill(x: Tensor) -> Tensor:
    return -(x - 0.3).square().sum(-1, keepdim=True) * 4


def sampled(x: Tensor, y: Tensor) -> Posterior:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    sampler = Langevin(net, likelihoods.Gaussian(sigma=0.05), chains=2)
    return sampler.sample((x, y), 1600, burn_in=600, thin=10, progress=False)


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    x = torch.rand(25, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, hill(x)


@pytest.fixture(scope="module")
def posterior(data: tuple[Tensor, Tensor]) -> Posterior:
    return sampled(*data)


def test_outputs_of_networks_are_differentiable(posterior: Posterior) -> None:
    """Central differences of float64 networks; without gradients they are predict's own."""
    x = torch.tensor([[0.2, 0.7], [0.9, 0.1]], dtype=torch.float64)
    plain = posterior.network_outputs(x)
    assert plain.shape == (200, 2, 1)
    torch.testing.assert_close(plain.mean(0), posterior.predict(x, calibrated=False).mean)
    asked = x.clone().requires_grad_()
    found = posterior.network_outputs(asked, most=7)
    torch.testing.assert_close(found.detach(), plain[torch.arange(7) * 200 // 7])
    (slope,) = torch.autograd.grad(found.square().mean(0).sum(), asked)
    step = 1e-5
    for place in ((0, 0), (1, 1)):
        moved = [x.clone(), x.clone()]
        moved[0][place] += step
        moved[1][place] -= step
        ends = [posterior.network_outputs(m, most=7).square().mean(0).sum() for m in moved]
        assert float(slope[place]) == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=1e-5)


def test_what_is_asked_wrongly_is_said(posterior: Posterior) -> None:
    with pytest.raises(ValueError, match="most"):
        posterior.network_outputs(torch.zeros(1, 2, dtype=torch.float64), most=0)


def test_expected_improvement_is_climbed_by_gradients(
    posterior: Posterior, data: tuple[Tensor, Tensor]
) -> None:
    pytest.importorskip("botorch")
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.optim import optimize_acqf

    from natural_langevin.integrations.botorch import PosteriorModel

    _, y = data
    model = PosteriorModel(posterior, most=64)
    batch = torch.rand(3, 4, 2, dtype=torch.float64, requires_grad=True)
    values = model.posterior(batch).values
    assert values.shape == (3, 64, 4, 1)
    assert torch.autograd.grad(values.sum(), batch)[0].abs().min() > 0
    acquire = qLogExpectedImprovement(model, best_f=y.max())
    torch.manual_seed(0)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    found, value = optimize_acqf(acquire, bounds, q=1, num_restarts=3, raw_samples=32)
    line = torch.linspace(0, 1, 11, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    with torch.no_grad():
        assert float(value) > float(acquire(grid[:, None]).max())  # which gradients have climbed
    assert float(hill(found)) > float(hill(grid).median())


def test_conditioning_samples_again(data: tuple[Tensor, Tensor]) -> None:
    pytest.importorskip("botorch")
    from natural_langevin.integrations.botorch import PosteriorModel

    seen: list[int] = []

    def sample(x: Tensor, y: Tensor) -> Posterior:
        seen.append(len(x))
        net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        sampler = Langevin(net, likelihoods.Gaussian(sigma=0.1), step_size=1e-3, chains=2)
        return sampler.sample((x, y), 20, batch_size=10, burn_in=4, thin=1, progress=False)

    x, y = (t.float() for t in data)
    model = PosteriorModel.fit(sample, x, y)
    more = model.condition_on_observations(torch.rand(3, 2), torch.rand(3, 1))
    assert seen == [25, 28]
    assert more.posterior(x.double()).mean.dtype == torch.float64
    with pytest.raises(ValueError, match="holds no data"):
        PosteriorModel(model.sampled).condition_on_observations(x[:1], y[:1])
    with pytest.raises(ValueError, match="regression posterior"):
        PosteriorModel(small_run.sample())
