"""Samplers and posteriors, copied and pickled: what goes on is the same run."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from natural_langevin import Langevin, Posterior, likelihoods, models, preconditioners
from pairwise import covering
from short_recipe import SHORT


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator)
    return x, (x.sum(1) > 0).long()


def again(one: Any) -> Any:
    return pickle.loads(pickle.dumps(one))


KRONECKER = preconditioners.KroneckerFisher(damping=0.1)


@pytest.mark.parametrize(
    ("how", "before", "metric"), covering([copy.deepcopy, again], [True, False], [None, KRONECKER])
)
def test_a_copy_of_a_sampler_goes_its_own_way(
    how: Callable[[Langevin], Langevin], before: bool, metric: Any
) -> None:
    """Copied before a run, and after it: hooks of the copy's network are its own."""

    def run(sampler: Langevin) -> Posterior:
        return sampler.sample(data(), steps=30, batch_size=20, progress=False)

    sampler = Langevin(
        models.mlp(3, 2, (8,)), likelihoods.Categorical(), preconditioner=metric, chains=2,
        step_size=1e-3 if metric else "auto", compile="auto" if metric is None else False,
        recipe=None if metric else SHORT,
    )  # fmt: skip
    other = how(sampler) if before else None
    found = run(sampler)
    twin = run(other or how(sampler))
    for name, samples in found.samples.items():
        assert torch.equal(samples, twin.samples[name])
    assert float(found.samples["0.weight"].std(1).min()) > 0


@pytest.mark.parametrize("how", [copy.deepcopy, again])
def test_a_copy_of_a_posterior_predicts_the_same(how: Callable[[Posterior], Posterior]) -> None:
    sampler = Langevin(models.mlp(3, 2, (8,)), likelihoods.Categorical(), chains=2, step_size=1e-3)
    found = sampler.sample(data(), steps=30, batch_size=20, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twin = how(found)
    assert torch.equal(twin.predict(data()[0]).mean, found.predict(data()[0]).mean)
