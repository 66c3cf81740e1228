"""The layout of a run, without any process."""

from __future__ import annotations

import itertools

import pytest
import torch

from natural_langevin import Langevin, likelihoods, priors
from natural_langevin.distributed import GroupError, Layout
from natural_langevin.distributed.layout import automatic, own_chains
from natural_langevin.distributed.process_mesh import DataGroup
from natural_langevin.statistics.data_parallel import Part, at_its_rows


def test_automatic_uses_every_process_and_gives_every_group_a_chain():
    for processes, chains in itertools.product(range(1, 13), repeat=2):
        layout = automatic(processes, chains)
        assert layout.processes == processes
        assert layout.chains <= chains
        larger = [k for k in range(layout.chains + 1, chains + 1) if processes % k == 0]
        assert larger == []
        spread = [own_chains(chains, layout.chains, row) for row in range(layout.chains)]
        assert [chain for own in spread for chain in own] == list(range(chains))
        assert max(map(len, spread)) - min(map(len, spread)) <= 1


def test_parts_are_the_minibatch():
    """Means of parts, each weighted, are the mean; rows among zeros, added up, are the rows."""
    for total, size in itertools.product([1, 2, 3, 7, 12], [1, 2, 3, 5]):
        values = torch.randn(total, 2, dtype=torch.float64)
        parts = [DataGroup(None, rank=r, size=size).part(total) for r in range(size)]
        assert [p.stop for p in parts[:-1]] == [p.start for p in parts[1:]]
        mean = sum(p.share(values[p.rows].mean(0)) for p in parts)
        torch.testing.assert_close(mean, values.mean(0))
        assert torch.equal(sum(at_its_rows(values[p.rows], p) for p in parts), values)


def test_an_empty_part_adds_nothing_even_where_its_stand_in_is_infinite():
    part = Part(2, 2, 5)
    assert part.share(torch.tensor([torch.inf, torch.nan])).tolist() == [0, 0]
    assert at_its_rows(torch.full((1, 3), torch.nan), part).abs().sum() == 0


def test_layouts_are_checked():
    with pytest.raises(ValueError, match="Layout data must be a positive integer, got 0"):
        Layout(data=0)
    with pytest.raises(GroupError, match="start the script with torchrun"):
        Langevin(torch.nn.Linear(2, 2), likelihoods.Categorical(), parallel=Layout(data=2))
    with pytest.raises(ValueError, match="parallel must be"):
        Langevin(torch.nn.Linear(2, 2), likelihoods.Categorical(), parallel="yes")


def test_priors_of_some_chains():
    prior = {"w": priors.Gaussian(variance=torch.tensor([1.0, 2.0, 3.0])), "b": priors.Flat()}
    found = priors.of_chains(prior, torch.tensor([0, 2]))
    assert found["w"].variance.tolist() == [1.0, 3.0]
    assert found["b"] is prior["b"]
