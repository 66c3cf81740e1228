"""What a run asks of kernels before it relies on them."""

from __future__ import annotations

import torch

from natural_langevin._internal.chains import Params
from natural_langevin.execution.agreement import disagreement, last_bits_moved


def step(params: Params, noise: float, seed: int) -> Params:
    """One that is rounding in half of the weights, and exact in the others."""
    g = torch.Generator().manual_seed(seed)
    rounding = noise * torch.randn(2, 50, 40, generator=g)
    rounding[:, :25] = 0.0
    return {"w": params["w"] + 0.1 + rounding}


def test_rounding_is_no_disagreement_and_an_error_is() -> None:
    before = {"w": torch.randn(2, 50, 40, generator=torch.Generator().manual_seed(0))}
    expected, rounded = step(before, 0.1, 1), step(last_bits_moved(before), 0.1, 2)
    own = step(before, 0.1, 3)
    assert disagreement(own, expected, before) == "w"
    assert disagreement(own, expected, before, rounded) == ""
    # Where rounding changes nothing, a step that is a fifth too long is wrong.
    wrong = {"w": before["w"] + 1.2 * (own["w"] - before["w"])}
    assert disagreement(wrong, expected, before, rounded) == "w"
