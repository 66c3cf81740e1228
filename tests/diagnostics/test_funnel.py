"""A funnel is named, with the remedy, where chains have not mixed; nothing else is."""

from __future__ import annotations

import torch

from natural_langevin.diagnostics import diagnose, funnel


def drawn(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_widths_that_follow_one_number_are_a_funnel() -> None:
    """Neal's: x_j ~ N(0, e^v), v ~ N(0, 9): a correlation of 3 / sqrt(9 + 4.9) = .80."""
    v = 3 * drawn((4, 500, 1))
    samples = {"v": v, "x": (v / 2).exp() * drawn((4, 500, 6), 1)}
    found = funnel(samples, [0, 1, 2, 3])
    assert found is not None
    assert found.scale == "v"
    assert found.followers == tuple(f"x[{j}]" for j in range(6))
    assert 0.7 < found.correlation < 0.9
    around = samples["x"] + 20 * drawn((4, 500, 1), 3)  # a mean that they share
    assert funnel(samples | {"x": around}, [0, 1, 2, 3]) == found
    assert funnel({"v": v, "z": drawn((4, 500, 6), 1)}, [0, 1, 2, 3]) is None
    assert funnel({"v": v, "x": samples["x"][..., :2]}, [0, 1, 2, 3]) is None  # two of a network
    others = {"network": drawn((4, 500, 20), 2)}
    assert funnel(samples | others, [0, 1, 2, 3]) is None  # fewer than half
    assert funnel({"w": drawn((4, 20, 101))}, [0, 1, 2, 3]) is None  # a network


def test_it_is_said_where_chains_have_not_mixed() -> None:
    v = 3 * drawn((4, 500, 1))
    samples = {"v": v, "x": (v / 2).exp() * drawn((4, 500, 6), 1)}
    found = funnel(samples, [0, 1, 2, 3])
    mixed = drawn((4, 500, 3))
    assert diagnose(mixed, {}, funnel=found).verdicts == []
    apart = mixed + 5 * torch.arange(4.0)[:, None, None]
    said = " ".join(diagnose(apart, {}, funnel=found).verdicts)
    assert "follow v (rank correlation 0.8" in said
    assert "non-centred" in said
