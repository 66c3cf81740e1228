"""References by NUTS: the posterior in JAX is torch's, chains go on where they were stopped.

JAX is imported by the tests: it takes seconds, in every process that only collects them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lab.defaults import against_nuts, nuts_files, small
from natural_langevin import likelihoods
from natural_langevin.diagnostics import ranks


@pytest.fixture(scope="module", autouse=True)
def _hasty_compiler() -> Iterator[None]:
    """Chains here are short: XLA need not make them fast."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def line() -> small.Problem:
    """y = a x + b, known noise: the posterior is a Gaussian."""
    x = torch.linspace(-1, 1, 40)[:, None]
    y = 0.7 * x - 0.2 + 0.5 * torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    net = lambda: nn.Sequential(nn.Linear(1, 1))  # noqa: E731
    return small.Problem("line", x, y, x[::8], y[::8], likelihoods.Gaussian(sigma=0.5), net)


def test_the_networks_are_those_of_torch() -> None:
    import jax
    import jax.numpy as jnp

    from lab.defaults import nuts

    for make in small.PROBLEMS:
        problem = make()
        network = problem.network().double()
        x = problem.x[:5].double()
        weights = {k: p.detach().numpy() for k, p in network.named_parameters()}
        with jax.enable_x64(True):
            found = np.asarray(nuts.forward(network, weights, jnp.asarray(x.numpy())))
        np.testing.assert_allclose(found, network(x).detach().numpy(), rtol=1e-9, atol=1e-12)


def test_chains_stop_go_on_merge_and_are_the_posterior(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lab.defaults import nuts_chains

    problem = line()
    monkeypatch.setattr(nuts_chains, "PROBLEMS", (lambda: problem,))
    variances = nuts_files.variances(problem, 5.0)
    whole = nuts_chains.chain(
        problem, variances, seed=0, start=0.1, warmup=150, draws=400, doublings=4
    )

    def call(*options: str) -> None:
        common = ["nuts_chains", "--problem", "0", "--scale", "5", "--folder", str(tmp_path / "c")]
        monkeypatch.setattr(sys, "argv", [*common, *options])
        nuts_chains.main()

    for draws in ("30", "400"):  # the first call ends early, the second goes on
        call("--chain", "0", "--warmup", "150", "--draws", draws, "--doublings", "4")
    with np.load(tmp_path / "c/line-5-chain0.npz") as kept:
        np.testing.assert_array_equal(kept["drawn"], whole["drawn"])
        assert kept["log"][150:, 1].sum() == 0  # nothing divergent

    call("--merge", str(tmp_path / "nuts"), "--most", "400")
    assert nuts_files.stored_scale(problem, tmp_path / "nuts") == 5.0
    found = against_nuts.reference(problem, 5.0, tmp_path / "nuts")
    assert (int(found["chains"]), int(found["draws"]), int(found["thin"])) == (1, 400, 1)
    assert found["rhat_max"] < 1.05
    assert found["gradients_per_draw"] >= 1
    assert abs(found["integrated"] - found["nll"]) < 0.01  # of a linear model all of it
    assert np.isnan(found["integrated_error"])  # of one chain

    # w ~ N(m, S): S^{-1} = X'X / sigma^2 + 1/10, m = S X'y / sigma^2; predictions X m, X S X'.
    design = torch.cat([problem.x, torch.ones_like(problem.x)], 1).double()
    covariance = torch.linalg.inv(design.T @ design / 0.25 + torch.eye(2) / 10)
    mean = design @ covariance @ design.T @ problem.y.double() / 0.25
    sd = (design @ covariance @ design.T).diagonal().sqrt()
    error = sd[::8].numpy() / float(found["ess_median"]) ** 0.5
    assert found["ess_median"] > 100
    assert np.all(np.abs(found["mean"][:, 0] - mean[::8, 0].numpy()) < 4 * error)
    assert np.all(np.abs(found["sd"][:, 0] - sd[::8].numpy()) < 4 * error)


@pytest.mark.thorough
def test_hmc_draws_from_the_posterior() -> None:
    from lab.defaults import hmc_chains, nuts_chains

    problem = line()
    variances = nuts_files.variances(problem, 5.0)
    drawn, accepted = hmc_chains.chain(
        problem, variances, seed=1, seconds=0.0, warmup=100, length=8, skipped=600
    )
    assert accepted > 0.7
    w = nuts_chains.named(problem, variances, drawn)
    design = torch.cat([problem.x, torch.ones_like(problem.x)], 1).double()
    covariance = torch.linalg.inv(design.T @ design / 0.25 + torch.eye(2) / 10)
    mean = covariance @ (design.T @ problem.y.double())[:, 0] / 0.25
    found = torch.stack([v.double().flatten() for _, v in sorted(w.items(), reverse=True)], 1)
    assert len(found) == 100
    assert torch.all((found.mean(0) - mean).abs() < 4 * (covariance.diagonal() / 100).sqrt())
    assert torch.all((found.var(0) / covariance.diagonal() - 1).abs() < 4 * (2 / 100) ** 0.5)


def test_chains_that_disagree_are_seen() -> None:
    from lab.defaults import nuts

    problem = line()
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(4, 50, 5, 1))
    alike = nuts.summary(problem, outputs)
    apart = nuts.summary(problem, outputs + 3 * np.arange(4)[:, None, None, None])
    assert alike["rhat_max"] < 1.2
    assert apart["rhat_median"] > 1.5
    numbers = outputs.reshape(4, 50, 5)
    assert alike["rhat_max"] == pytest.approx(ranks.rhat(numbers).max())


def test_a_class_that_nobody_doubts_is_at_no_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = line()
    known = {"nll": 0.3, "nll_of_chains": [0.3], "seconds": 1.0, "rhat_max": 1.1}
    reference = {"mean": np.array([0.0, 0.5]), "sd": np.array([1e-12, 0.1])}
    nuts_files.store(tmp_path / "line-5.npz", known | reference)
    plan = SimpleNamespace(step_size=0.1, prior_scale=None, measured={"way": "native"})
    said = SimpleNamespace(verdicts=["said"])
    posterior = SimpleNamespace(plan=plan, config={"steps": 10}, diagnose=lambda x: said)
    found = {"mean": torch.tensor([1e-6, 0.55]), "sd": torch.tensor([1e-9, 0.12])}
    monkeypatch.setattr(against_nuts, "ours", lambda *given: (posterior, 1.0))
    monkeypatch.setattr(against_nuts, "score", lambda *given: {"nll": 0.31} | found)
    row = against_nuts.compare(problem, 0, tmp_path)
    assert row["distance_in_sd"] == pytest.approx(0.5, rel=1e-5)
    assert row["sd_ratio_median"] == pytest.approx(1.2, rel=1e-5)
    assert row["nll_difference"] == pytest.approx(0.01)
    assert row["nuts_rhat"] == {"rhat_max": 1.1}
    assert row["verdicts"] == ["said"]
