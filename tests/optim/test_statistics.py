"""Statistics captured from the user's own passes, against the float64 per-sample loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradients.test_every_layer import assert_exact
from natural_langevin import likelihoods, preconditioners
from natural_langevin.gradients import Evaluation
from natural_langevin.optim import NaturalLangevin
from oracle import cross_entropy, per_sample_loop
from registry import CASES, batch, make


def optimizer_for(model: nn.Module, **options: object) -> NaturalLangevin:
    return NaturalLangevin(
        model, likelihoods.Categorical(), num_data=100, lr=1e-4,
        preconditioner=preconditioners.QuasiDiagonalFisher(), **options,
    )  # fmt: skip


def gathered(optimizer: NaturalLangevin) -> Evaluation:
    """Gradient and statistics as the next step would use them."""
    optimizer._fisher.gather()
    return Evaluation(
        torch.zeros(1, dtype=torch.float64),
        optimizer._gradient(1.0),
        optimizer._fisher.statistics(1.0),
        {},
    )


def backward_in_pieces(model: nn.Module, x: Tensor, y: Tensor, sizes: list[int]) -> None:
    """The mean loss of all samples, by micro-batches."""
    for x_part, y_part in zip(x.split(sizes), y.split(sizes), strict=True):
        (cross_entropy(model(x_part), y_part) / len(x)).backward()


@pytest.mark.parametrize("name", CASES)
def test_every_layer_in_unequal_micro_batches(name: str) -> None:
    model, (x, y) = make(name, torch.float64), batch(name, 4, 1, torch.float64)
    expected = per_sample_loop(model, cross_entropy, x[0], y[0])
    optimizer = optimizer_for(model)
    backward_in_pieces(model, x[0], y[0], [3, 1])
    assert_exact(gathered(optimizer), 0, expected.samples)
