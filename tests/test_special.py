"""Special functions against scipy."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import special, stats

from natural_langevin._internal.special import (
    beta_quantile,
    gamma_quantile,
    incomplete_beta,
    poisson_quantile,
)

U = torch.tensor([1e-6, 0.1, 0.5, 0.9, 1 - 1e-6], dtype=torch.float64)


def test_incomplete_beta() -> None:
    a = torch.tensor([0.5, 1, 2, 10, 100, 1000])[:, None, None].double()
    b = torch.tensor([0.5, 1, 3, 50, 900, 20_000])[:, None].double()
    x = torch.linspace(0, 1, 101).double()
    expected = special.betainc(a.numpy(), b.numpy(), x.numpy())
    np.testing.assert_allclose(incomplete_beta(a, b, x).numpy(), expected, rtol=0, atol=1e-11)


def test_quantiles() -> None:
    for shape in (0.5, 3.0, 200.0, 1e4):
        expected = torch.tensor(stats.gamma(shape).ppf(U.numpy())).clamp_min(1e-12)
        torch.testing.assert_close(gamma_quantile(shape, U), expected, rtol=1e-9, atol=0)
    for a, b in ((0.5, 2.0), (30.0, 0.2), (0.05, 0.05), (4000.0, 3.5), (20.0, 9e4)):
        expected = torch.tensor(stats.beta(a, b).ppf(U.numpy())).clamp_max(1 - math.ulp(0.5))
        torch.testing.assert_close(beta_quantile(a, b, U), expected, rtol=1e-9, atol=1e-12)
    for rate in (1e-3, 1.0, 40.0, 1e5):
        counts = torch.tensor(stats.poisson(rate).ppf(U.numpy()))
        assert torch.equal(poisson_quantile(torch.tensor(rate).double(), U), counts)


def test_under_vmap_and_the_compiler() -> None:
    """One operator each, whatever axis is mapped, and no gradient."""
    rates = torch.tensor([[0.5, 2.0], [7.0, 30.0]], dtype=torch.float64, requires_grad=True)
    draws = torch.tensor([[0.3, 0.6], [0.9, 0.2]], dtype=torch.float64)
    for function in (gamma_quantile, poisson_quantile):
        expected = function(rates, draws)
        assert not expected.requires_grad
        assert torch.equal(torch.func.vmap(function, in_dims=1, out_dims=1)(rates, draws), expected)
        shared = torch.func.vmap(function, in_dims=(None, 0))(rates[0], draws)
        assert torch.equal(shared[1], function(rates[0], draws[1]))
        traced = torch.compile(function, fullgraph=True, backend="aot_eager")(rates, draws)
        assert torch.equal(traced, expected)
