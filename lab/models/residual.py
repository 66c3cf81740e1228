"""The residual network whose posterior predictions Hamiltonian Monte Carlo has published.

ResNet-20 (He et al. 2016) with filter response normalisation (Singh & Krishnan 2020) in place of
batch normalisation, and SiLU ("swish") activations, as Izmailov et al. 2021 and the NeurIPS 2021
competition on approximate inference define it: every convolution has a bias, strided ones pad on
the right and at the bottom only (jax's "SAME"), a shortcut that changes shape is a normalised 1x1
convolution, and the last map is linear on channel means.
"""

from __future__ import annotations

import functools
import importlib.util
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from natural_langevin._internal.gpu_kernels import reachable


class FilterResponseNorm(nn.Module):
    """y = max(weight x / sqrt(mean(x^2) + eps) + bias, threshold), channel by channel.

    The mean is over a sample's own pixels, so that there is nothing to keep for evaluation and
    samples do not mix. x: (B, C, *pixels); the three parameters are (C,).

    >>> FilterResponseNorm(3)(torch.ones(1, 3, 2, 2)).shape
    torch.Size([1, 3, 2, 2])
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.threshold = nn.Parameter(torch.zeros(channels))

    def scale(self, x: Tensor) -> Tensor:
        """1 / sqrt(mean(x^2) + eps) in the parameters' precision: (B, C)."""
        pixels = tuple(range(2, x.ndim))
        # One pass over x that accumulates in full precision, whatever autocast makes of x.
        norm = torch.linalg.vector_norm(x, dim=pixels, dtype=self.weight.dtype)
        return (norm.square() / math.prod(x.shape[2:]) + self.eps).rsqrt()

    def affine(self, x: Tensor) -> Tensor:
        """weight x / sqrt(mean(x^2) + eps) + bias, in x's precision."""
        gain = (self.weight * self.scale(x)).to(x.dtype)
        gain = gain.reshape(gain.shape + (1,) * (x.ndim - 2))
        return torch.addcmul(by_channel(self.bias, x), x, gain)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *pixels) to the same, in x's precision."""
        if self.has_kernels(x):
            return self.fused(x)
        return torch.clamp(self.affine(x), min=by_channel(self.threshold, x))

    def has_kernels(self, x: Tensor) -> bool:
        """Whether ``fused`` takes this input."""
        if not (has_triton() and reachable(x)):
            return False
        from lab.models import fused_norm

        return fused_norm.takes(x, self.weight)

    def fused(
        self,
        x: Tensor,
        *,
        shift: Tensor | None = None,
        other: Tensor | None = None,
        silu: bool = False,
    ) -> Tensor:
        """The norm of x + shift, plus ``other``, through SiLU: in one kernel."""
        from lab.models.fused_norm import fused_norm

        return fused_norm(
            x, self.weight, self.bias, self.threshold, eps=self.eps, shift=shift, other=other,
            silu=silu,
        )  # fmt: skip


@functools.cache
def has_triton() -> bool:
    """Whether kernels can be written for GPUs."""
    return importlib.util.find_spec("triton") is not None


def by_channel(parameter: Tensor, x: Tensor) -> Tensor:
    """(C,), shaped to broadcast against x: (1, C, 1, ...)."""
    return parameter.to(x.dtype).reshape((1, -1) + (1,) * (x.ndim - 2))


class _Layer(nn.Module):
    """silu(norm(conv(x)) + other), without what is not asked for."""

    def __init__(
        self, inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, silu: bool = True
    ) -> None:
        super().__init__()
        # jax's "SAME": an even number of pixels, halved, needs one more on one side only.
        self.pad = (0, 1, 0, 1) if stride == 2 and kernel == 3 else None
        self.silu = silu
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride=stride, padding=0 if stride == 2 else kernel // 2
        )
        self.norm = FilterResponseNorm(outputs)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x = x if self.pad is None else F.pad(x, self.pad)
        conv, norm = self.conv, self.norm
        if x.is_cuda and not _recorded(conv, norm):
            z = _without_bias(conv, x)
            if norm.has_kernels(z):
                return norm.fused(z, shift=conv.bias, other=other, silu=self.silu)
            assert conv.bias is not None
            y = norm(z + by_channel(conv.bias, z))
        else:
            y = norm(conv(x))
        y = y if other is None else other + y
        return F.silu(y) if self.silu else y


def _without_bias(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """The convolution's products alone."""
    if has_triton() and reachable(x):
        from lab.models import narrow_conv

        if narrow_conv.takes(x, conv):
            return narrow_conv.narrow_conv(x, conv.weight)
    return F.conv2d(x, conv.weight, None, conv.stride, conv.padding)


def _recorded(conv: nn.Module, norm: nn.Module) -> bool:
    """Whether somebody wants to see what passes between the two."""
    plain = type(conv) is nn.Conv2d and type(norm) is FilterResponseNorm
    return not plain or _has_any_global_hook() or any(map(_has_hooks, (conv, norm)))


def _has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module is more than its class's ``forward``, or noticed by somebody."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


class _Block(nn.Module):
    """silu(shortcut(x) + layer(silu(layer(x))))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _Layer(inputs, outputs, stride=stride)
        self.second = _Layer(outputs, outputs)
        self.shortcut = (
            _Layer(inputs, outputs, kernel=1, stride=2, silu=False)
            if stride == 2
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x), self.shortcut(x))


class ResidualNetwork(nn.Module):
    """Images with their channels last, (B, height, width, colours), to logits (B, classes).

    Channels last in memory is what convolutions on GPUs are fastest with; turned around here, as a
    view, the layers see the usual (B, colours, height, width). Not on CPUs: without AVX-512, oneDNN
    3.12 writes outside its memory where a strided convolution of one pixel has them last."""

    def __init__(self, *, depth: int, width: int, colours: int, classes: int) -> None:
        super().__init__()
        self.stem = _Layer(colours, width)
        blocks, channels = [], width
        for stage in range(3):
            for index in range((depth - 2) // 6):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(_Block(channels, width * 2**stage, stride))
                channels = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.movedim(-1, 1)
        h = self.blocks(self.stem(x if x.is_cuda else x.contiguous()))
        return self.head(h.mean((2, 3)))


def resnet_frn(
    *, depth: int = 20, width: int = 16, colours: int = 3, classes: int = 10, seed: int = 0
) -> ResidualNetwork:
    """The residual network with filter response normalisation; by default the published one.

    Weights start as N(0, 2 / fan_in), truncated at two standard deviations; biases and thresholds
    at 0, gains at 1. ``depth`` is 6 n + 2 for n blocks of two layers in each of three stages, of
    ``width``, 2 ``width`` and 4 ``width`` channels.

    >>> sum(p.numel() for p in resnet_frn().parameters())
    274042
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth must be 6 n + 2 for a whole number n from 1 on, got {depth!r}")
    with torch.random.fork_rng(devices=[]):  # layers draw weights when they are made
        network = ResidualNetwork(depth=depth, width=width, colours=colours, classes=classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1:
                deviation = math.sqrt(2 / math.prod(parameter.shape[1:])) / 0.87962566103423978
                nn.init.trunc_normal_(
                    parameter, std=deviation, a=-2 * deviation, b=2 * deviation,
                    generator=generator,
                )  # fmt: skip
            elif name.endswith("bias"):
                parameter.zero_()
    return network
