"""The kernels that add up per-sample gradients, and their squares, where they form them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from natural_langevin.statistics.rules import RULES, Call, base
from triton_interpreter import run_script


def test_the_kernels_in_their_interpreter() -> None:
    assert run_script(Path(__file__).with_name("interpreted_sums.py")).count("agrees") == 17


@pytest.mark.parametrize(
    ("module", "shape", "taken"),
    [
        (nn.Conv2d(3, 4, 3), (2, 3, 9, 9), True),
        (nn.Conv3d(8, 40, 3), (2, 8, 4, 4, 4), False),
        (nn.Linear(40, 40), (2, 6, 40), False),
    ],
)
def test_the_kernel_takes_convolutions_of_up_to_two_axes(
    monkeypatch: pytest.MonkeyPatch, module: nn.Module, shape: tuple[int, ...], taken: bool
) -> None:
    monkeypatch.setattr(base, "sums_kernels", lambda *_, batched: SimpleNamespace(square_sums=None))
    monkeypatch.setattr(base, "native", lambda *_: False)
    x = torch.zeros(shape)
    weight = RULES[type(module)].gradients(module, Call((x,), (module(x).detach(),)))["weight"]
    assert isinstance(weight, base.Outer)
    assert (weight.square_sums() is not None) == taken
