"""``step``: every batch is checked, not the first alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods

X, Y = torch.linspace(-1, 1, 60).reshape(20, 3), torch.arange(20) % 3
NAN = X.clone()
NAN[4, 1] = float("nan")


def stepped(likelihood: Any, outputs: int, first: Any, **options: Any) -> tuple[Langevin, Any]:
    sampler = Langevin(nn.Linear(3, outputs), likelihood, step_size=1e-3, chains=2, num_data=20)
    return sampler, sampler.step(sampler.init(), first, **options)[0]


LATER = {
    "fewer labels": ((X, Y[:5]), "same length, got 20 and 5"),
    "more labels": ((X[:5], Y), "same length, got 5 and 20"),
    "labels of .7": ((X, torch.full((20,), 0.7)), "integer class indices, got dtype torch.float32"),
    "a class too many": ((X, Y + 1), "class indices must lie in 0 .. 2"),
    "negative": ((X, Y - 1), "class indices must lie in 0 .. 2"),
    "labels in a column": ((X, Y[:, None]), "do not fit logits"),
    "another width": ((X[:, :2], Y), "cannot take x of shape"),
    "NaN": ((NAN, Y), "NaN or infinite values in 1 of 20"),
    "huge": ((X * 1e30, Y), "holds values up to"),
    "nothing": ((X[:0], Y[:0]), "the batch is empty"),
}


@pytest.mark.parametrize("name", LATER)
def test_a_later_batch_is_refused(name: str) -> None:
    sampler, state = stepped(likelihoods.Categorical(), 3, (X, Y))
    batch, message = LATER[name]
    with pytest.raises((ValueError, TypeError), match=message):
        sampler.step(state, batch)
    sampler.step(state, (X[:7], Y[:7]))  # a shorter one is none of them


def test_a_later_batch_of_another_precision_is_taken_in_the_networks() -> None:
    sampler, state = stepped(likelihoods.Categorical(), 3, (X, Y))
    found, expected = (sampler.step(state, (x, Y))[0].params for x in (X.double(), X))
    assert all(torch.equal(found[k], expected[k]) for k in expected)


@pytest.mark.parametrize(
    ("likelihood", "value"),
    [(likelihoods.Bernoulli(), 5.0), (likelihoods.Poisson(), -1.0), (likelihoods.Poisson(), 0.5)],
)
def test_targets_out_of_range_are_refused(likelihood: Any, value: float) -> None:
    y = torch.zeros(20, 1)
    sampler, state = stepped(likelihood, 1, (X, y))
    with pytest.raises(ValueError, match="targets must be"):
        sampler.step(state, (X, y + value))


def test_with_a_chain_axis_the_last_chains_rows_are_looked_at_too() -> None:
    x, y = X.reshape(2, 10, 3), Y.reshape(2, 10)
    sampler, state = stepped(likelihoods.Categorical(), 3, (x, y), chain_axis=True)
    wrong = y.clone()
    wrong[1, 9] = 3
    with pytest.raises(ValueError, match="class indices must lie in"):
        sampler.step(state, (x, wrong), chain_axis=True)
    for batch in ((x[:1], y[:1]), (x, y[:, :5]), (x.repeat(2, 1, 1), y.repeat(2, 1)), (X, Y)):
        with pytest.raises(ValueError, match=r"must begin with \(2 chains, rows\)"):
            sampler.step(state, batch, chain_axis=True)
