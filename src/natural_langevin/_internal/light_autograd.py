"""Gradients without the modules that torch would load for them: nearly two seconds at first use.

``torch.func.vjp`` switches compiled autograd off while it differentiates, and reaches for it in
``torch._dynamo``; where that was never loaded nobody can have switched it on. ``torch.autograd``
compares the shapes of outputs and their gradients by symbolic algebra (sympy); shapes that are
plain numbers need none. Both functions are torch's own otherwise, and back in place afterwards.

No public function of torch does without these modules, so two private ones are replaced. A torch
whose own look different is left alone: the replacements must first differentiate a known function,
and the price of a failure is the two seconds.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

log = logging.getLogger("natural_langevin")

Method = TypeVar("Method", bound=Callable[..., Any])

_LOCK, _USERS = threading.Lock(), [0]
#: (module, name, torch's own function), while others stand in for them.
_REPLACED: list[tuple[Any, str, Any]] = []
#: The same, of the torch whose replacements were tried out.
_TRIED: list[tuple[Any, str, Any]] = []


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
            if _USERS[0] == 0:
                _restore()


def _replace() -> None:
    """Puts both in place, unless torch is another than they were made for."""
    try:
        from torch._functorch import eager_transforms

        for module, name, change in (
            (eager_transforms, "_autograd_grad", _without_compiled_autograd),
            (torch.autograd, "_make_grads", _without_symbols),
        ):
            usual = getattr(module, name)
            changed = change(usual)
            _REPLACED.append((module, name, usual))
            setattr(module, name, changed)
        if _TRIED != _REPLACED:
            _try_out()
            _TRIED[:] = _REPLACED
    except Exception as error:
        _restore()
        log.debug("torch's own autograd serves, which loads more: %s", error)


def _restore() -> None:
    while _REPLACED:
        setattr(*_REPLACED.pop())


def _try_out() -> None:
    """The derivative of x^3 at 2, by every function that is used."""
    x = torch.full((1,), 2.0, requires_grad=True)
    with torch.enable_grad():
        by_tape = torch.autograd.grad(x**3, x, torch.ones(1))[0]
    by_function = torch.func.grad(lambda t: (t**3).sum())(x.detach())
    by_pullback = torch.func.vjp(lambda t: t**3, x.detach())[1](torch.ones(1))[0]
    if not [float(g) for g in (by_tape, by_function, by_pullback)] == [12.0] * 3:
        raise RuntimeError("a wrong derivative")


class _Torch:
    """The module torch, with a compiled autograd that is off until somebody loads dynamo."""

    _off = types.SimpleNamespace(
        compiled_autograd=types.SimpleNamespace(_disable=contextlib.nullcontext)
    )

    def __getattr__(self, name: str) -> Any:
        off = name == "_dynamo" and "torch._dynamo" not in sys.modules
        return self._off if off else getattr(torch, name)


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

    def make_grads(outputs: Any, grads: Any, *batched: Any, **named: Any) -> Any:
        if not any((*batched, *named.values())) and all(map(fits, outputs, grads)):
            return tuple(grads)
        return usual(outputs, grads, *batched, **named)

    return make_grads
