"""Calls of a network inside vmap and vjp: unsupported operations are replaced.

- ``torch.utils.checkpoint`` hooks into saved tensors, which torch.func's transformations refuse.
  It changes what is stored, never what is computed, so the checkpointed functions are called
  plainly; ``Langevin(microbatch=...)`` is what bounds the memory of activations here.
- Transformers' attention looks whether a mask hides anything, to leave it out; vmap lets nobody
  look at values. As under torch.compile, the mask is always applied, which gives the same.
- On the CPU, scaled_dot_product_attention's fused kernel has no batching rule: vmap would call it
  chain by chain; and no second derivative. The same from plain operations has both.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from natural_langevin._internal.gpu_kernels import VMAP, transformations
from natural_langevin._internal.messages import first_line


class _Plain:
    """Stands in for the autograd function of ``use_reentrant=True``."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if not _is_ours():
            return _SAVED["CheckpointFunction"].apply(function, preserve, *args)
        return function(*args)


def _plain_generator(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Stands in for the hooks of ``use_reentrant=False``: nothing before, nothing after."""
    if not _is_ours():
        yield from _SAVED["_checkpoint_without_reentrant_generator"](*args, **kwargs)
        return
    yield


def _is_tracing(tensor: Any = None) -> Any:
    """Stands in for the question whether Transformers' masks may be looked at."""
    return True if _is_ours() else _SAVED["is_tracing"](tensor)


#: What the stand-ins stand for, by name, and the thread whose network is being called: for all
#: others they are what they were.
_SAVED: dict[str, Any] = {}
_OWNER: list[int] = []


def _is_ours() -> bool:
    return threading.get_ident() in _OWNER


#: What is replaced belongs to the process, and ``functional_call`` puts parameters into the module
#: itself: one network is called at a time, whichever thread asks.
MODEL_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # a fork waits until no network is being called either
    os.register_at_fork(
        before=MODEL_LOCK.acquire,
        after_in_parent=MODEL_LOCK.release,
        after_in_child=MODEL_LOCK.release,
    )


@contextmanager
def vectorised(x: Tensor, *, once: bool = False) -> Iterator[None]:
    """For a network's forward pass on ``x``, which is differentiated ``once`` at most. Threads wait
    for each other."""
    if torch.compiler.is_compiling():  # which has its own way with locks and checkpoints
        with _plain_attention(x):
            yield
        return
    with (
        MODEL_LOCK,
        _replaced(),
        nullcontext() if once and VMAP not in transformations() else _plain_attention(x),
    ):
        yield


def _plain_attention(x: Tensor) -> Any:
    return sdpa_kernel(SDPBackend.MATH) if x.device.type == "cpu" else nullcontext()


@contextmanager
def _replaced() -> Iterator[None]:
    """Inside, ``checkpoint(f, *args)`` is ``f(*args)``, and Transformers' masks are made without a
    look at them, in this thread alone. Not while torch.compile traces: it treats checkpoints as
    operators of its own."""
    parts: list[tuple[Any, str, Any]] = [
        (torch_checkpoint, "CheckpointFunction", _Plain),
        (torch_checkpoint, "_checkpoint_without_reentrant_generator", _plain_generator),
    ]
    masks = sys.modules.get("transformers.masking_utils")
    if hasattr(masks, "is_tracing"):
        parts.append((masks, "is_tracing", _is_tracing))
    if _OWNER:  # a network within a network, of the same thread: the lock keeps others out
        yield
        return
    _SAVED.update({name: getattr(module, name) for module, name, _ in parts})
    _OWNER.append(threading.get_ident())
    try:
        for module, name, plain in parts:
            setattr(module, name, plain)
        yield
    finally:
        for module, name, _ in parts:
            setattr(module, name, _SAVED[name])
        _OWNER.clear()


#: What these transformations' errors speak of, which have no class of their own.
_THEIR_WORDS = ("vmap", "functorch", "torch.func", "data pointer", "setup_context")


def is_untransformable(error: RuntimeError) -> bool:
    """Whether vmap or a gradient inside it could not take the network, rather than, say, memory."""
    return any(word in str(error) for word in _THEIR_WORDS)


def why_untransformable(error: RuntimeError) -> str:
    """In a line: what the network did that vmap cannot take, and where."""
    text = first_line(error).rstrip(".")
    if "data-dependent" in text or "data pointer" in text:
        text = "its forward pass looks at the values of a tensor (if, .all(), .item(), numpy)"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not {"torch", "natural_langevin"} & set(Path(f.filename).parts)]
    return f"{text}, at {own[-1].filename}:{own[-1].lineno}" if own else text
