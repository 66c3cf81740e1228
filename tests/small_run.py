"""A small posterior, the same every time, for the tests of everything that happens to samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners
from natural_langevin.run.collector import SampleCollector


def network(activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    """3 inputs, 4 hidden units, 2 outputs."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 2))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 2)
    return net


def data() -> tuple[Tensor, Tensor]:
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(1))
    return x, (x.sum(1) > 1.5).long()


def sampler(chains: int = 2, **settings: Any) -> Langevin:
    settings = {"step_size": 5e-4, "seed": 5, "model": network()} | settings
    return Langevin(settings.pop("model"), likelihoods.Categorical(), chains=chains, **settings)


def sample(steps: int = 12, **settings: Any) -> Posterior:
    """Iterates 5, 6, ..., 12 of two chains, unless ``settings`` say otherwise."""
    run = {"batch_size": 20, "burn_in": 4, "thin": 1, "progress": False}
    of_sampler = settings.pop("sampler", {})
    return sampler(**of_sampler).sample(settings.pop("data", data()), steps, **(run | settings))


def disagreeing(
    network: nn.Module,
    likelihood: likelihoods.Likelihood,
    data: tuple[Tensor, Tensor],
    steps: int = 12,
    burn_in: int = 2,
) -> Posterior:
    """Large steps, so that the networks disagree; settings of one's own, so nothing is learned."""
    sampler = Langevin(
        network, likelihood, step_size=0.03, chains=2, init="fan_in",
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=1e-2),
    )  # fmt: skip
    return sampler.sample(data, steps, batch_size=8, burn_in=burn_in, thin=2, progress=False)


def assert_same(one: Posterior, other: Posterior) -> None:
    """Bit for bit."""
    for group in ("samples", "mean", "last", "learned"):
        theirs = getattr(other, group)
        assert set(getattr(one, group)) == set(theirs)
        for name, value in getattr(one, group).items():
            assert value.dtype == theirs[name].dtype
            assert torch.equal(theirs[name], value), (group, name)
    assert torch.equal(one.trace, other.trace)
    assert torch.equal(one.diverged, other.diverged)


def the_file(folder: Path, kind: str) -> Path:
    """The one file of a kind ("samples", "posterior", "draws") in a folder."""
    (path,) = folder.glob(f"{kind}-*.safetensors")
    return path


class StopHereError(Exception):
    """In the place of a power cut."""


def stop_after(monkeypatch: pytest.MonkeyPatch, draws: int) -> None:
    """Every run from now on ends so, right after it has kept so many draws."""
    keep = SampleCollector.keep

    def counted(self: SampleCollector, state: Any) -> None:
        keep(self, state)
        if self.kept == draws:
            raise StopHereError

    monkeypatch.setattr(SampleCollector, "keep", counted)


def sample_until(monkeypatch: pytest.MonkeyPatch, draws: int, sample: Callable[[], object]) -> None:
    """A run that is cut off after so many draws."""
    with monkeypatch.context() as patch:
        stop_after(patch, draws)
        with pytest.raises(StopHereError):
            sample()
