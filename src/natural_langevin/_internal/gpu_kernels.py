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


def usable(on: Tensor) -> bool:
    """Whether a kernel may work on this tensor: compiled code and torch.func's transformations have
    their own ways and cannot see into ours; inside the latter, even what is new has no memory. A
    kernel runs on the current device, unlike torch's operations, which follow their tensors."""
    return (
        on.is_cuda
        and _ALLOWED[-1]
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and on.device.index == torch.cuda.current_device()
    )
