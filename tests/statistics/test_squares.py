"""The kernel that squares per-sample gradients of linear maps where it forms them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from natural_langevin.statistics.rules import RULES, Call, base
from triton_interpreter import run_script


def test_the_kernel_in_its_interpreter() -> None:
    assert run_script(Path(__file__).with_name("interpreted_squares.py")).count("agrees") == 14


@pytest.mark.parametrize(
    ("module", "shape", "taken"),
    [
        (nn.Conv2d(3, 4, 3), (2, 3, 9, 9), {"high"}),  # patches; G_n of 108 numbers
        (nn.Conv2d(8, 40, 3), (2, 8, 4, 4), {"high", "highest"}),
        (nn.Linear(40, 40), (2, 6, 40), {"high", "highest"}),
        (nn.Linear(4, 4), (2, 6, 4), set()),
        (nn.Conv3d(8, 40, 3), (2, 8, 4, 4, 4), set()),
    ],
)
def test_the_kernel_is_taken_where_it_saves_more_than_it_costs(
    monkeypatch: pytest.MonkeyPatch, module: nn.Module, shape: tuple[int, ...], taken: set[str]
) -> None:
    monkeypatch.setattr(base, "_kernel", lambda a, delta: SimpleNamespace(square_sums=None))
    x = torch.zeros(shape)
    weight = RULES[type(module)].gradients(module, Call((x,), (module(x).detach(),)))["weight"]
    assert isinstance(weight, base.Outer)
    found = set()
    before = torch.get_float32_matmul_precision()
    for precision in ("high", "highest"):
        torch.set_float32_matmul_precision(precision)
        found |= {precision} if weight.square_sums() else set()
    torch.set_float32_matmul_precision(before)
    assert found == taken
