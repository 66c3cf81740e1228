"""Runs the kernels of filter response normalisation in Triton's interpreter, on the CPU."""

from __future__ import annotations

import os


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

    import torch

    from natural_langevin.models import FilterResponseNorm
    from natural_langevin.models.fused_norm import FusedNorm, takes, works

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
        x = torch.randn(shape, generator=generator).to(dtype)
        params = tuple(getattr(norm, name).detach() for name in names)
        assert takes(x, params[0])

        def plain(x, *params, norm=norm):
            return torch.func.functional_call(norm, dict(zip(names, params, strict=True)), (x,))

        def fused(x, *params, norm=norm):
            return FusedNorm.apply(x, *params, norm.eps)

        found, pull = torch.func.vjp(fused, x, *params)
        full = x.double(), *(p.double() for p in params)
        expected, pull_expected = torch.func.vjp(plain, *full)
        cotangent = torch.randn(shape, generator=generator).to(dtype)
        with torch.no_grad():
            gradients, reference = pull(cotangent), pull_expected(cotangent.double())
        tolerance = 8 * torch.finfo(dtype).eps
        for name, one, other in zip(
            ("y", "x", *names), (found, *gradients), (expected, *reference), strict=True
        ):
            error = float((one.double() - other).abs().max() / other.abs().max())
            assert error < tolerance, (name, error)
            print(f"{name} {dtype}: {error:.1e}")

    seen = []

    def with_chains(v):
        seen.append(takes(v, norm.weight))
        return v.sum()

    torch.func.vmap(torch.func.grad(with_chains))(x[None].float())
    assert seen == [False], "with an axis of chains, the kernels would read the wrong memory"
    print("agrees")


if __name__ == "__main__":  # not while tests are collected: every file is imported for its doctests
    main()
