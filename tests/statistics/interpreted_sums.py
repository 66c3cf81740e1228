"""Sums of per-sample gradients and of their squares in Triton's interpreter, against a float64
loop over samples."""

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

    from triton_interpreter import start

    if not start():  # before a kernel is imported
        return

    import torch
    from torch import nn

    from natural_langevin._internal.chains import per_unit
    from natural_langevin.statistics import moments, triton_sums
    from natural_langevin.statistics.requests import grouped
    from natural_langevin.statistics.rules import RULES, Call, base, normalisation

    def dense(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the kernel was not used")

    base.sums_kernels = lambda *tensors, batched=False: triton_sums
    moments.dense_moments = dense
    # Units, inputs and positions in one block and in several, samples in unequal parts.
    torch.set_float32_matmul_precision("high")
    triton_sums.TILE = triton_sums.Tile(16, 32, 16, programs=3)
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
            asked = grouped(shapes, units, frozenset({"second", "cross"}))
            asked = [g._replace(requests=g.requests | {"first"}) for g in asked]
            means = moments.layer_moments(
                {k: [found[k]] for k in shapes}, asked, shapes, moments.Averaging(5)
            )
            samples = by_loop(module, x, delta)
            expected = {k: g.mean(0) for k, g in samples.items()}
            torch.testing.assert_close(
                means["first"], expected, rtol=1e-5, atol=1e-5, check_dtype=False
            )
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

    # Networks side by side, with inputs of their own and with the same for all.
    module = nn.Conv2d(3, 5, 3, padding=1)
    xs, deltas = torch.randn(2, 4, 3, 6, 6), torch.randn(2, 4, 5, 6, 6)

    def of_one(x: Any, delta: Any) -> Any:
        found = RULES[nn.Conv2d].gradients(module, Call((x,), (delta,)))
        sums = found["weight"].square_sums()
        return sums(found["bias"].dense(slice(0, 4)), True)

    for x, axis in ((xs, 0), (xs[0], None)):
        together = torch.func.vmap(of_one, in_dims=(axis, 0))(x, deltas)
        apart = [of_one(x if axis is None else x[k], deltas[k]) for k in range(2)]
        torch.testing.assert_close(together, tuple(map(torch.stack, zip(*apart, strict=True))))
        print(f"networks side by side, inputs {axis}: agrees")

    # Norms: channels and positions in one tile and in several.
    triton_sums.NORM_TILE, triton_sums.NORM_POSITIONS = 64, 16
    normalisation.sums_kernels = base.sums_kernels
    for channels, groups, pixels in ((6, 2, (5, 7)), (24, 2, (3,)), (3, 3, (4, 4)), (8, 1, (6,))):
        norm = nn.GroupNorm(groups, channels)
        x, delta = 2 * torch.randn(2, 3, channels, *pixels) + 1
        parts = normalisation.group_norm_gradients(norm, Call((x,), (delta,)))
        torch.testing.assert_close(
            {k: part.dense(slice(0, 3)) for k, part in parts.items()}, by_loop(norm, x, delta),
            rtol=1e-5, atol=1e-5, check_dtype=False,
        )  # fmt: skip
        print(f"GroupNorm, {channels} channels: agrees")


if __name__ == "__main__":  # not while tests are collected: every file is imported for its doctests
    main()
