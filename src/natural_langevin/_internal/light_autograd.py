"""Gradients without the modules that torch would load for them: nearly two seconds at first use.

``torch.func.vjp`` switches compiled autograd off while it differentiates, and reaches for it in
``torch._dynamo``; where that was never loaded nobody can have switched it on. ``torch.autograd``
compares the shapes of outputs and their gradients by symbolic algebra (sympy); shapes that are
plain numbers need none. Both functions are torch's own otherwise, and back in place afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

Method = TypeVar("Method", bound=Callable[..., Any])

_LOCK, _USERS = threading.Lock(), [0]
#: (module, name, torch's own function), while others stand in for them.
_REPLACED: list[tuple[Any, str, Any]] = []


def eager(method: Method) -> Method:
    """A method that compiles nothing unless its object's ``compile`` is True."""

    @functools.wraps(method)
    def light(self: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if self.compile is True else light_autograd():
            return method(self, *args, **kwargs)

    return light  # type: ignore[return-value]


@contextlib.contextmanager
def light_autograd() -> Iterator[None]:
    """Inside, eager gradients load nothing; where dynamo is loaded already, all stays as it is."""
    if "torch._dynamo" in sys.modules:
        yield
        return
    with _LOCK:
        _USERS[0] += 1
        if _USERS[0] == 1:
            _replace()
    try:
        yield
    finally:
        with _LOCK:
            _USERS[0] -= 1
            while _USERS[0] == 0 and _REPLACED:
                setattr(*_REPLACED.pop())


def _replace() -> None:
    from torch._functorch import eager_transforms

    for module, name, change in (
        (eager_transforms, "_autograd_grad", _without_compiled_autograd),
        (torch.autograd, "_make_grads", _without_symbols),
    ):
        usual = getattr(module, name, None)
        if isinstance(usual, types.FunctionType):  # as in the versions of torch known so far
            _REPLACED.append((module, name, usual))
            setattr(module, name, change(usual))


class _Torch:
    """The module torch, with a compiled autograd that is off."""

    _dynamo = types.SimpleNamespace(
        compiled_autograd=types.SimpleNamespace(_disable=contextlib.nullcontext)
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _without_compiled_autograd(usual: types.FunctionType) -> types.FunctionType:
    """The same code with another ``torch``."""
    names = usual.__globals__ | {"torch": _Torch()}
    light = types.FunctionType(usual.__code__, names, usual.__name__, usual.__defaults__)
    light.__kwdefaults__ = usual.__kwdefaults__
    return light


def _without_symbols(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients that fit their outputs are taken as they are; anything else is torch's business."""

    def fits(output: Any, grad: Any) -> bool:
        return (
            isinstance(output, Tensor) and isinstance(grad, Tensor)
            and not (output.is_nested or grad.is_nested)
            and output.shape == grad.shape and output.dtype == grad.dtype
        )  # fmt: skip

    def make_grads(outputs: Any, grads: Any, is_grads_batched: bool) -> Any:
        if not is_grads_batched and all(map(fits, outputs, grads)):
            return tuple(grads)
        return usual(outputs, grads, is_grads_batched)

    return make_grads
