"""The collector: which iterates are kept, and the posterior that they make."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, schedules
from natural_langevin.optim import Collector, NaturalLangevin

N = 12


def loop(network: nn.Module, classes: tuple[Tensor, Tensor], **options: object) -> Collector:
    x, y = classes
    optimizer = NaturalLangevin(
        network, likelihoods.Categorical(), num_data=len(x), lr=schedules.halving(1e-3, 5)
    )
    collector = optimizer.collector(**options)
    for step in range(N):
        optimizer.zero_grad()
        rows = torch.arange(5) + 3 * step % 35
        loss = F.cross_entropy(network(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        collector.update(loss)
    return collector


def test_the_iterates_of_the_sampler(
    network: nn.Module, classes: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    """Kept, predicted and saved like those of ``Langevin`` with the same batches."""
    x, y = classes
    sampler = Langevin(
        network, likelihoods.Categorical(), chains=1, num_data=len(x),
        step_size=schedules.halving(1e-3, 5),
    )  # fmt: skip
    state, iterates = sampler.init(), {}
    for step in range(N):
        rows = torch.arange(5) + 3 * step % 35
        state, _ = sampler.step(state, (x[rows], y[rows]))
        iterates[step + 1] = {k: v[0] for k, v in state.params.items()}
    collector = loop(network, classes, burn_in=3, thin=2)
    posterior = collector.posterior()
    assert collector.kept == [5, 7, 9, 11]
    assert posterior.trace[:, 0].tolist() == list(range(1, N + 1))
    for k, samples in posterior.samples.items():
        expected = torch.stack([iterates[i][k] for i in (5, 7, 9, 11)])[None]
        torch.testing.assert_close(samples, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(posterior.mean[k], state.mean[k], rtol=1e-4, atol=1e-5)
    prediction = posterior.predict(x)
    torch.testing.assert_close(prediction.mean.sum(1), torch.ones(len(x)))
    posterior.save(tmp_path / "saved")
    again = Posterior.load(tmp_path / "saved", network)
    torch.testing.assert_close(again.predict(x).mean, prediction.mean)
    assert again.config["optimizer"] == "NaturalLangevin"
    assert "R-hat" in str(posterior.diagnose(x[:4]))


def test_at_most_so_many(network: nn.Module, classes: tuple[Tensor, Tensor]) -> None:
    collector = loop(network, classes, burn_in=1, keep=3, store="cpu", sample_dtype=torch.bfloat16)
    assert (collector.kept, collector.thin) == ([5, 9], 4)
    assert collector.posterior().samples["0.weight"].dtype == torch.bfloat16
    collector.close()


def test_nothing_kept_yet(network: nn.Module, classes: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="keep the first one after 120"):
        loop(network, classes, burn_in=100, thin=20).posterior()
    for wrong in ({"thin": 0}, {"burn_in": -1}, {"keep": 0}, {"store": "disk"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            loop(network, classes, **wrong)
