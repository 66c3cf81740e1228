"""The last layer integrated exactly: against the Gaussian law of all targets, and many draws."""

from __future__ import annotations

import math

import torch

from lab.defaults import gaps, last_layer, nuts_files, small
from lab.defaults.small import Problem


def drawn(problem: Problem, shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Weights from the prior N(0, 2 / fan-in)."""
    g = torch.Generator().manual_seed(0)
    variances = nuts_files.variances(problem, 1.0)
    return {
        name: variances[name] ** 0.5 * torch.randn(*shape, *p.shape, generator=g)
        for name, p in problem.network().named_parameters()
    }


def test_it_is_the_law_of_a_target_given_all_others() -> None:
    """p(y_new | y) = p(y_new, y) / p(y) of N(0, Phi v Phi' + sigma^2), two hidden layers."""
    problem = gaps.five_inputs()
    variances = nuts_files.variances(problem, 1.0)
    weights = drawn(problem, (2,))
    found = last_layer.log_density(problem, weights, variances)
    assert found.shape == (2, len(problem.x_test))

    def law(phi: torch.Tensor) -> torch.distributions.MultivariateNormal:
        wide = variances["4.weight"] * phi @ phi.T + variances["4.bias"]
        wide = wide + 0.1**2 * torch.eye(len(phi)).double()
        return torch.distributions.MultivariateNormal(torch.zeros(len(phi)).double(), wide)

    w = {k: v[1].double() for k, v in weights.items()}
    for row in (0, 149):
        x = torch.cat([problem.x, problem.x_test[row : row + 1]]).double()
        y = torch.cat([problem.y, problem.y_test[row : row + 1]]).double().flatten()
        phi = (x @ w["0.weight"].T + w["0.bias"]).tanh()
        phi = (phi @ w["2.weight"].T + w["2.bias"]).tanh()
        exact = law(phi).log_prob(y) - law(phi[:-1]).log_prob(y[:-1])
        torch.testing.assert_close(found[1, row], exact, rtol=1e-6, atol=1e-6)


def test_the_nll_is_of_averaged_densities_with_an_error_over_chains() -> None:
    chains = [torch.tensor([[0.5, 0.2]]).log(), torch.tensor([[0.1, 0.4]]).log()]
    value, error = last_layer.nll(chains)
    assert math.isclose(value, -math.log(0.3), rel_tol=1e-6)
    one, other = (-math.log(a * b) / 2 for a, b in ((0.5, 0.2), (0.1, 0.4)))
    assert math.isclose(error, abs(one - other) / 2, rel_tol=1e-5)
    problem = gaps.ring()
    weights, variances = drawn(problem, (3, 5)), nuts_files.variances(problem, 1.0)
    alone = [
        last_layer.log_density(problem, {k: v[c] for k, v in weights.items()}, variances)
        for c in range(3)
    ]
    assert last_layer.of_chains(problem, weights, variances) == last_layer.nll(alone)


def test_which_problems_it_is_for() -> None:
    made = [make() for make in (*small.PROBLEMS[:5], *gaps.GAPS)]
    found = {problem.name for problem in made if last_layer.integrable(problem)}
    assert found == {
        "regression 1-50-1", "regression 8-50-50-1", "gap 1-20-1", "corners 2-8-8-8-1",
        "ring 2-16-1", "corners 5-10-10-1",
    }  # fmt: skip
