"""Networks of unusual form: the defaults run on them, or say in the network's words why not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners
from short_recipe import SHORT

METRICS = {
    "default": None,
    "quasi-diagonal": preconditioners.QuasiDiagonalFisher(),
}


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
    sampler = Langevin(
        Line(),
        likelihoods.Gaussian(sigma=0.1),
        preconditioner=METRICS[name],
        recipe=SHORT,
        chains=2,
    )
    posterior = sampler.sample((x, y), batch_size=20, progress=False)
    draws = {k: v.flatten() for k, v in posterior.samples.items()}
    assert abs(draws["a"].mean() - 3) < 0.15
    assert abs(draws["b"].mean() - 1) < 0.1
