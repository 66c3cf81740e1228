"""When a tensor's operations may be one Triton kernel: eagerly, on a GPU, outside of vmap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_ALLOWED = [True]


@contextmanager
def plain() -> Iterator[None]:
    """Inside, everything comes from plain operations: what kernels are compared with."""
    _ALLOWED.append(False)
    try:
        yield
    finally:
        _ALLOWED.pop()


def reachable(on: Tensor) -> bool:
    """Whether a kernel that is launched now would find this tensor: it runs on the current device,
    unlike torch's operations, which follow their tensors, and compiled code cannot see into it."""
    return (
        on.is_cuda
        and not torch.compiler.is_compiling()
        and on.device.index == torch.cuda.current_device()
    )


def usable(on: Tensor) -> bool:
    """Whether a kernel may work on this tensor itself: torch.func's transformations have their own
    ways; inside them, even what is new has no memory."""
    return _ALLOWED[-1] and reachable(on) and torch._C._functorch.peek_interpreter_stack() is None
