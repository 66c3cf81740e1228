"""When a tensor's operations may be one Triton kernel: eagerly, on a GPU, outside of vmap."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal import gpu_build
from natural_langevin._internal.messages import first_line

Trial = tuple[Any, Sequence[Tensor], Sequence[Tensor]]
#: The threads that are inside of ``plain``, each as often as it is.
_PLAIN: list[int] = []


@contextmanager
def plain() -> Iterator[None]:
    """Inside this block no kernel is used: for results that kernels are compared with. What other
    threads compute meanwhile stays as it is."""
    here = threading.get_ident()
    _PLAIN.append(here)
    try:
        yield
    finally:
        _PLAIN.remove(here)


def allowed() -> bool:
    """Whether kernels may be used: outside of ``plain``. Threads that Python did not start may be
    autograd's, which calls hooks there on behalf of any other."""
    if not _PLAIN:
        return True
    foreign = threading.current_thread().name.startswith("Dummy-")
    return not foreign and threading.get_ident() not in _PLAIN


def reachable(on: Tensor) -> bool:
    """Whether a kernel may be launched now on this tensor: it runs on the current device, unlike
    torch's operations, which follow their tensors, and torch.compile cannot see into it."""
    return (
        on.is_cuda
        and not torch.compiler.is_compiling()
        and on.device.index == torch.cuda.current_device()
    )


def usable(on: Tensor, *, batched: bool = False) -> bool:
    """Whether a kernel may read this tensor's memory: inside torch.func's transformations (vmap,
    grad) a tensor has none of its own. ``batched``: the kernel knows what to do inside vmap."""
    return reachable(on) and allowed() and all(batched and t == VMAP for t in transformations())


VMAP = torch._C._functorch.TransformType.Vmap


def transformations() -> list[torch._C._functorch.TransformType]:
    """Those of torch.func around whoever asks."""
    return [one.key() for one in torch._C._functorch.get_interpreter_stack() or []]


def tried(device: torch.device, what: str, trial: Callable[[], Trial]) -> Any:
    """Kernels that agree with plain operations; or None, and why in the log. ``trial``: the
    kernels, what they give, and what plain operations give."""
    try:
        gpu_build.wait(device)
        with plain(), torch.cuda.device(device):
            kernels, found, expected = trial()
        pairs = zip(found, expected, strict=True)
        if all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs):
            return kernels
        reason = "they disagree with plain operations"
    except Exception as error:  # no Triton, or a driver that it cannot work with
        reason = first_line(error)
    logging.getLogger("natural_langevin").warning("no Triton %s (%s)", what, reason)
    return None


def dot_precision(dtype: torch.dtype = torch.float32) -> str:
    """TF32 where ``torch.set_float32_matmul_precision`` allows it (or ``dtype`` has no more
    digits), otherwise full float32."""
    full = dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return "ieee" if full else "tf32"
