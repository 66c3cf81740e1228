"""Networks of torch written in jax: layers are found by their modules, weights by their names."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from lab.models import FilterResponseNorm
from lab.rivals.problems import Residual
from natural_langevin.cli.experiments.bench_networks import GPT, Attention, Block


def forward(
    module: nn.Module, weights: dict[str, Any], x: Any, name: str = "", *, together: bool = True
) -> Any:
    """The outputs of a module in jax, whose weights' names begin with ``name``; ``together``: of
    several networks at once, and convolutions have stride 1."""
    import jax
    import jax.numpy as jnp

    def of(child: str, x: Any) -> Any:
        return forward(
            module.get_submodule(child), weights, x, f"{name}{child}.", together=together
        )

    weight, bias = (weights.get(f"{name}{k}") for k in ("weight", "bias"))
    match module:
        case nn.Sequential():
            for child, _ in module.named_children():
                x = of(child, x)
            return x
        case nn.Conv2d():
            padding, stride = int(module.padding[0]), int(module.stride[0])
            x = (_convolved if together else _strided)(x, weight, padding, stride)
            return x if bias is None else x + bias[:, None, None]
        case Residual():
            return of("norm", of("body", x) + of("shortcut", x))
        case FilterResponseNorm():
            gain, shift, threshold = (
                weights[f"{name}{k}"][:, None, None] for k in ("weight", "bias", "threshold")
            )
            square = (x**2).mean((2, 3), keepdims=True)
            return jnp.maximum(gain * x / jnp.sqrt(square + module.eps) + shift, threshold)
        case nn.Linear():
            assert weight is not None
            return x @ weight.T + bias
        case nn.Embedding():
            return jnp.asarray(weight)[x]
        case nn.LayerNorm():
            apart = x - x.mean(-1, keepdims=True)
            return apart / jnp.sqrt((apart**2).mean(-1, keepdims=True) + module.eps) * weight + bias
        case nn.ZeroPad2d():
            left, right, top, bottom = module.padding
            return jnp.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        case nn.Tanh():
            return jnp.tanh(x)
        case nn.SiLU():
            return jax.nn.silu(x)
        case nn.ReLU():
            return jax.nn.relu(x)
        case nn.GELU():
            return jax.nn.gelu(x, approximate=False)
        case nn.AvgPool2d():
            k = int(module.kernel_size)  # type: ignore[arg-type]
            n, c, h, w = x.shape
            x = x[:, :, : h // k * k, : w // k * k]
            return x.reshape(n, c, h // k, k, w // k, k).mean((3, 5))
        case nn.MaxPool2d():
            k, stride, pad = (int(v) for v in (module.kernel_size, module.stride, module.padding))  # type: ignore[arg-type]
            around = ((0, 0), (0, 0), (pad, pad), (pad, pad))
            return jax.lax.reduce_window(
                x, -jnp.inf, jax.lax.max, (1, 1, k, k), (1, 1, stride, stride), around
            )
        case nn.AdaptiveAvgPool2d():  # to one pixel
            return x.mean((2, 3))
        case nn.Identity():
            return x
        case nn.Flatten():
            return x.reshape(len(x), -1)
        case Attention():
            n, length, width = x.shape
            parts = of("qkv", x).reshape(n, length, 3, module.heads, -1)
            q, k, v = (parts[:, :, j] for j in range(3))
            scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(width // module.heads)
            seen = jnp.tril(jnp.ones((length, length), bool))
            share = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
            return of("out", jnp.einsum("nhqk,nkhd->nqhd", share, v).reshape(n, length, width))
        case Block():
            x = x + of("attention", of("norm1", x))
            return x + of("perceptron", of("norm2", x))
        case GPT():
            x = of("tokens", x) + of("places", jnp.arange(x.shape[1]))
            return of("head", of("norm", of("blocks", x)))
    raise ValueError(f"there is no {type(module).__name__} in jax")


def _strided(x: Any, weight: Any, padding: int, stride: int) -> Any:
    import jax

    around = ((padding, padding), (padding, padding))
    return jax.lax.conv_general_dilated(x, weight, (stride, stride), around)


def _convolved(x: Any, weight: Any, padding: int, stride: int) -> Any:
    """By patches and one product: convolutions of several networks at once would be grouped ones,
    which are slow."""
    import jax.numpy as jnp

    side, around = weight.shape[-1], (padding, padding)
    x = jnp.pad(x, ((0, 0), (0, 0), around, around))
    h, w = x.shape[2] - side + 1, x.shape[3] - side + 1
    parts = [x[:, :, i : i + h, j : j + w] for i in range(side) for j in range(side)]
    patches = jnp.stack(parts, 2)  # (n, channel, place of the filter, h, w)
    return jnp.einsum("ncphw,ocp->nohw", patches, weight.reshape(*weight.shape[:2], -1))
