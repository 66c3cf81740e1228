"""Runs the kernels of the residual network in Triton's interpreter, on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path


def hessian_product(function, inputs):
    """Of sum(y^2), with ones."""
    import torch

    slope = torch.autograd.grad(function(*inputs).square().sum(), inputs, create_graph=True)
    return torch.autograd.grad(sum(s.sum() for s in slope), inputs)


def norms() -> None:
    import torch

    from lab.models import FilterResponseNorm
    from lab.models.fused_norm import fused_norm, takes, works

    # The first question is asked while a network is differentiated, under autocast.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        asked = []
        torch.func.vjp(
            lambda v: asked.append(works(torch.device("cpu"), torch.bfloat16)) or v, torch.ones(1)
        )
    assert asked == [True]
    generator = torch.Generator().manual_seed(0)
    names = ("weight", "bias", "threshold")
    for shape, dtype in (((3, 18, 3, 5), torch.float32), ((2, 4, 4, 4), torch.bfloat16)):
        norm = FilterResponseNorm(shape[1])
        for name in names:
            getattr(norm, name).data.normal_(generator=generator)
        x, other = torch.randn(2, *shape, generator=generator).to(dtype).unbind(0)
        shift = torch.randn(shape[1], generator=generator).to(dtype)
        params = tuple(getattr(norm, name).detach() for name in names)
        assert takes(x, params[0])

        def plain(x, weight, bias, threshold, shift=None, other=None, norm=norm):
            own = dict(zip(names, (weight, bias, threshold), strict=True))
            x = x if shift is None else x + shift[:, None, None]
            y = torch.func.functional_call(norm, own, (x,))
            return y if other is None else torch.nn.functional.silu(y + other)

        def fused(x, *params, norm=norm):
            around = dict(zip(("shift", "other"), params[3:], strict=False))
            return fused_norm(x, *params[:3], eps=norm.eps, silu=bool(around), **around)

        cotangent = torch.randn(shape, generator=generator).to(dtype)
        tolerance = 8 * torch.finfo(dtype).eps
        for inputs in ((x, *params), (x, *params, shift, other)):
            found, pull = torch.func.vjp(fused, *inputs)
            expected, pull_expected = torch.func.vjp(plain, *(v.double() for v in inputs))
            with torch.no_grad():
                gradients, reference = pull(cotangent), pull_expected(cotangent.double())
            for name, one, two in zip(
                ("y", "x", *names, "shift", "other"), (found, *gradients), (expected, *reference),
                strict=False,
            ):  # fmt: skip
                error = float((one.double() - two).abs().max() / two.abs().max())
                assert error < tolerance, (name, error)
                print(f"{name} {dtype}: {error:.1e}")
            # The curvature of a posterior is measured by gradients that have a graph of their own.
            if dtype is not torch.float32:
                continue  # y^2 of so few bits has no other derivatives to be compared with
            curved = [
                hessian_product(one, [v.detach().to(kind).requires_grad_() for v in inputs])
                for one, kind in ((fused, dtype), (plain, torch.float64))
            ]
            for one, two in zip(*curved, strict=True):
                assert float((one.double() - two).abs().max() / two.abs().max()) < tolerance

    seen = []

    def with_chains(v):
        seen.append(takes(v, norm.weight))
        return v.sum()

    torch.func.vmap(torch.func.grad(with_chains))(x[None].float())
    assert seen == [False], "with an axis of chains, the kernels would read the wrong memory"


def convolutions() -> None:
    """In float16: the interpreter does not multiply matrices of bfloat16."""
    import torch
    import torch.nn.functional as F

    from lab.models import narrow_conv

    assert narrow_conv.works(torch.device("cpu"), torch.float16)
    generator = torch.Generator().manual_seed(0)
    # A layer of images, and one whose outputs are more than a tile of 16: the interpreter takes
    # milliseconds for every eight weights.
    for samples, inputs, outputs, height, width in ((5, 3, 16, 8, 8), (2, 16, 17, 6, 4)):
        x = torch.randn(samples, inputs, height, width, generator=generator).half()
        weight = torch.randn(outputs, inputs, 3, 3, generator=generator).half()
        cotangent = torch.randn(samples, outputs, height, width, generator=generator).half()
        found, pull = torch.func.vjp(narrow_conv.NarrowConv.apply, x, weight)
        expected, pull_expected = torch.func.vjp(
            lambda x, weight: F.conv2d(x, weight, padding=1), x.double(), weight.double()
        )
        dx, dw = pull(cotangent)
        if inputs == 3:  # nobody asks for the first layer's gradient with respect to its images
            _, pull_weight = torch.func.vjp(
                lambda w, x=x: narrow_conv.NarrowConv.apply(x, w), weight
            )
            assert torch.equal(pull_weight(cotangent)[0], dw)
        for one, two in zip(
            (found, dx, dw), (expected, *pull_expected(cotangent.double())), strict=True
        ):
            error = float((one.double() - two).abs().max() / two.abs().max())
            assert error < 2 * torch.finfo(torch.float16).eps, error
        curved = [
            hessian_product(one, [v.to(kind).requires_grad_() for v in (x, weight)])
            for one, kind in (
                (narrow_conv.NarrowConv.apply, torch.float16),
                (lambda x, weight: F.conv2d(x, weight, padding=1), torch.float64),
            )
        ]
        for one, two in zip(*curved, strict=True):
            error = float((one.double() - two).abs().max() / two.abs().max())
            assert error < 4 * torch.finfo(torch.float16).eps, error


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))

    from triton_interpreter import start

    if not start():  # before a kernel is imported
        return
    norms()
    convolutions()
    print("agrees")


if __name__ == "__main__":  # not while tests are collected: every file is imported for its doctests
    main()
