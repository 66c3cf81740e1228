"""When a tensor's operations may be one Triton kernel: eagerly, on a GPU, outside of vmap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_ALLOWED = [True]


@contextmanager
def plain() -> Iterator[None]:
    """Inside this block no kernel is used: for results that kernels are compared with."""
    _ALLOWED.append(False)
    try:
        yield
    finally:
        _ALLOWED.pop()


def allowed() -> bool:
    """Whether kernels may be used: outside of ``plain``."""
    return _ALLOWED[-1]


def reachable(on: Tensor) -> bool:
    """Whether a kernel may be launched now on this tensor: it runs on the current device, unlike
    torch's operations, which follow their tensors, and torch.compile cannot see into it."""
    return (
        on.is_cuda
        and not torch.compiler.is_compiling()
        and on.device.index == torch.cuda.current_device()
    )


def usable(on: Tensor) -> bool:
    """Whether a kernel may read this tensor's memory: inside torch.func's transformations (vmap,
    grad) a tensor has none of its own."""
    return _ALLOWED[-1] and reachable(on) and torch._C._functorch.peek_interpreter_stack() is None
