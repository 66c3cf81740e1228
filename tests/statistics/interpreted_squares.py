"""Squares of per-sample gradients in Triton's interpreter, against a float64 loop over samples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def by_loop(module: Any, x: Any, delta: Any) -> dict[str, Any]:
    """Per-sample gradients in float64, by name."""
    import copy

    import torch

    module = copy.deepcopy(module).double()
    own = dict(module.named_parameters())
    rows = [
        torch.autograd.grad(module(a[None]), [*own.values()], d[None])
        for a, d in zip(x.double(), delta.double(), strict=True)
    ]
    return dict(zip(own, map(torch.stack, zip(*rows, strict=True)), strict=True))


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))

    from triton_interpreter import UNUSABLE, fault, start

    start()  # before a kernel is imported
    if reason := fault():
        print(UNUSABLE, reason)
        return

    import torch
    from torch import nn

    from natural_langevin._internal.chains import per_unit
    from natural_langevin.statistics import moments, triton_squares
    from natural_langevin.statistics.requests import grouped
    from natural_langevin.statistics.rules import RULES, Call, base

    def dense(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the kernel was not used")

    base._kernel = lambda a, delta: triton_squares
    moments.dense_moments = dense
    # Units, inputs and positions in one block and in several, samples in unequal parts.
    torch.set_float32_matmul_precision("high")
    triton_squares.TILE = triton_squares.Tile(16, 32, 16, programs=3)
    torch.manual_seed(0)
    cases = [
        (nn.Conv2d(3, 5, 3, padding=1), (7, 6)),
        (nn.Conv2d(4, 18, 3, stride=2, padding=1, bias=False), (8, 9)),
        (nn.Conv2d(5, 6, 1, stride=2), (5, 6)),
        (nn.Conv2d(4, 6, 3, dilation=2, groups=2, padding=1, padding_mode="reflect"), (6, 5)),
        (nn.Conv1d(3, 4, 3, padding=1), (9,)),
        (nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, bias=False), (3, 4)),
    ]
    for module, pixels in cases:
        for layout in (torch.contiguous_format, torch.channels_last)[: len(pixels)]:
            x = torch.randn(5, module.in_channels, *pixels).to(memory_format=layout)
            delta = torch.randn_like(module(x)).to(memory_format=layout)
            found = RULES[type(module)].gradients(module, Call((x,), (delta,)))
            shapes = {k: p.shape for k, p in module.named_parameters()}
            units = RULES[type(module)].units(module)
            means = moments.layer_moments(
                {k: [found[k]] for k in shapes},
                grouped(shapes, units, frozenset({"second", "cross"})),
                shapes, samples=5, sharing="exact",
            )  # fmt: skip
            samples = by_loop(module, x, delta)
            expected = {k: g.square().mean(0) for k, g in samples.items()}
            torch.testing.assert_close(
                means["second"], expected, rtol=1e-5, atol=1e-5, check_dtype=False
            )
            if "bias" in shapes:
                row = {
                    "weight": (
                        per_unit(samples["bias"], samples["weight"]) * samples["weight"]
                    ).mean(0)
                }
                torch.testing.assert_close(
                    means["cross"]["bias"], row, rtol=1e-5, atol=1e-5, check_dtype=False
                )
            print(f"{type(module).__name__}, {layout}: agrees")


if __name__ == "__main__":  # not while tests are collected: every file is imported for its doctests
    main()
