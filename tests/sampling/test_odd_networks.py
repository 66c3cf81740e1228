"""Networks of unusual form: the defaults run on them, or say in the network's words why not."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners
from short_recipe import SHORT, changed

X = torch.linspace(-1, 1, 80).reshape(20, 4)
Y = torch.arange(20) % 3
#: The defaults whole, and another metric without the trial of the prior's scales.
METRICS = {
    "default": (None, SHORT),
    "quasi-diagonal": (
        preconditioners.QuasiDiagonalFisher(), changed(SHORT, prior={"fewest_rows": 10**9}),
    ),
}  # fmt: skip


class Line(nn.Module):
    """a x + b, its parameters without an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.a * x + self.b


@pytest.mark.parametrize("name", METRICS)
def test_parameters_without_an_axis(name):
    x = torch.linspace(-1, 1, 60)[:, None]
    y = 3 * x + 1 + 0.1 * torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    metric, recipe = METRICS[name]
    sampler = Langevin(
        Line(), likelihoods.Gaussian(sigma=0.1), preconditioner=metric, recipe=recipe, chains=2
    )
    posterior = sampler.sample((x, y), batch_size=20, progress=False)
    draws = {k: v.flatten() for k, v in posterior.samples.items()}
    assert abs(draws["a"].mean() - 3) < 0.15
    assert abs(draws["b"].mean() - 1) < 0.1


class Remembering(nn.Module):
    """Keeps what its hidden layer gave last."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.last = torch.tanh(self.hidden(x))
        return self.out(self.last)


def sampled(model: nn.Module, y: Tensor = Y, **options) -> Posterior:
    sampler = Langevin(model, likelihoods.Categorical(), step_size=1e-3, chains=2, **options)
    return sampler.sample((X, y), steps=6, batch_size=10, progress=False)


def test_a_network_that_was_called_before_and_keeps_what_it_computed():
    model = Remembering()
    fresh = copy.deepcopy(model)
    model(X).sum().backward()
    last = model.last
    found, expected = sampled(model), sampled(fresh)
    assert torch.equal(found.predict(X).mean, expected.predict(X).mean)
    assert model.last is last
    assert last.requires_grad


class Squeezing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze()


@pytest.mark.parametrize("options", [{}, {"step_size": 1e-3}])
def test_an_output_without_rows_is_refused_with_the_remedy(options):
    sampler = Langevin(Squeezing(), likelihoods.Gaussian(sigma=1.0), chains=2, **options)
    with pytest.raises(ValueError, match=r"squeeze\(-1\)"):
        sampler.sample((X, X[:, 0]), steps=6, progress=False)


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda layer: prune.l1_unstructured(layer, "weight", 0.5), r"prune\.remove"),
        (old_weight_norm, r"torch\.nn\.utils\.parametrizations"),
    ],
)
def test_weights_that_hooks_compute_are_refused_with_the_remedy(change, said):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), change(nn.Linear(8, 3)))
    with pytest.raises(ValueError, match=said):
        Langevin(model, likelihoods.Categorical())


def test_a_lazy_network_is_refused_with_the_remedy_whatever_is_left_open():
    with pytest.raises(ValueError, match="call the model once"):
        Langevin(nn.Sequential(nn.LazyLinear(3)), likelihoods.Categorical())


def test_sizes_of_several_targets():
    with pytest.raises(ValueError, match=r"likelihoods\.Scaled"):
        likelihoods.Gaussian(sigma=torch.tensor([0.1, 0.5]))
    scaled = likelihoods.Scaled(likelihoods.Gaussian(1.0), torch.tensor([0.5, 2.0]))
    assert scaled.scale == (0.5, 2.0)
