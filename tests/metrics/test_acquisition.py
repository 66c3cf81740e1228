"""Batches to label: the greedy choice of a brute-force sum over all combinations of labels."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from natural_langevin.metrics import bald, batch_bald


def networks(count: int = 5, inputs: int = 6, classes: int = 3, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    outputs = scale * torch.randn(count, inputs, classes, generator=generator, dtype=torch.float64)
    return outputs.softmax(-1)


def information(p: Tensor, chosen: list[int]) -> float:
    """Over all combinations of labels, one by one."""
    joint = 0.0
    for labels in itertools.product(range(p.shape[2]), repeat=len(chosen)):
        each = [math.prod(float(s[i, k]) for i, k in zip(chosen, labels, strict=True)) for s in p]
        mean = sum(each) / len(each)
        joint -= mean * math.log(mean)
    own = -(p[:, chosen] * p[:, chosen].log()).sum(-1).mean(0)
    return joint - float(own.sum())


def test_it_is_the_greedy_choice_by_brute_force() -> None:
    p = networks()
    taken, found = batch_bald(p, 4)
    chosen: list[int] = []
    for place in range(4):
        scores = {i: information(p, [*chosen, i]) for i in range(6) if i not in chosen}
        best = max(scores, key=lambda i: scores[i])
        assert int(taken[place]) == best
        assert float(found[place]) == pytest.approx(scores[best], rel=1e-10)
        chosen.append(best)
    assert float(found[0]) == pytest.approx(float(bald(p).max()))
    assert (found.diff() > 0).all()
    assert float(found[-1]) < math.log(5)  # all that can be learned of which network it is


def test_drawn_combinations_agree_with_all_of_them() -> None:
    """3^5 combinations against 100 drawn ones at a time, over 60 seeds: five standard errors."""
    p = networks(scale=1.0)
    right = batch_bald(p, 6)
    drawn = [batch_bald(p, 6, most=100, seed=seed) for seed in range(60)]
    last = torch.stack([scores[-1] for _, scores in drawn])  # the set is then all inputs
    error = float(last.std() / math.sqrt(len(last)))
    assert abs(float(last.mean() - right[1][-1])) < 5 * error
    assert error < 0.02


def test_copies_of_one_input_are_taken_once() -> None:
    """Of networks that are sure of their labels: asked again, they say nothing new."""
    p = networks(inputs=3, scale=30.0)
    copies = torch.cat([p[:, [int(bald(p).argmax())]].expand(-1, 4, -1), p], 1)
    best = bald(copies).topk(3).indices
    assert len({tuple(copies[0, i].tolist()) for i in best}) == 1  # three times the same
    taken, _ = batch_bald(copies, 3)
    assert len({tuple(copies[0, i].tolist()) for i in taken}) == 3


def test_what_cannot_be_is_refused() -> None:
    p = networks()
    with pytest.raises(ValueError, match="between 1 and the 6 inputs, got 7"):
        batch_bald(p, 7)
    with pytest.raises(ValueError, match="at least the number of classes, 3, got 2"):
        batch_bald(p, 2, most=2)
    with pytest.raises(ValueError, match="class probabilities"):
        bald(p.log())
