"""Gradients without the modules that torch would load for them: nearly two seconds at first use.

``torch.func.vjp`` switches compiled autograd off while it differentiates, and reaches for it in
``torch._dynamo``; where that was never loaded nobody can have switched it on. ``torch.autograd``
compares the shapes of outputs and their gradients by symbolic algebra (sympy); shapes that are
plain numbers need none. ``vjp``, ``grad`` and ``autograd_grad`` are copies of torch's functions
that do without both. torch's own are not touched, and serve where dynamo is loaded already, while
something is compiled, and where torch looks different from what the copies were made for: they must
first differentiate a known function.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

log = logging.getLogger("natural_langevin")


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """``torch.func.vjp``."""
    return _functions().vjp(function, *primals, has_aux=has_aux)


def grad(function: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """``torch.func.grad`` by the first argument."""

    def gradient(*args: Any, **kwargs: Any) -> Any:
        return _functions().grad(function, has_aux)(*args, **kwargs)

    return gradient


def autograd_grad(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """``torch.autograd.grad``."""
    found: tuple[Any, ...] = _functions().autograd_grad(*args, **kwargs)
    return found


class Functions(NamedTuple):
    """The three, torch's or ours."""

    vjp: Callable[..., Any]
    grad: Callable[[Callable[..., Any], bool], Callable[..., Any]]
    autograd_grad: Callable[..., Any]


def _torchs_grad(function: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    return torch.func.grad(function, has_aux=has_aux)


TORCHS = Functions(torch.func.vjp, _torchs_grad, torch.autograd.grad)


def _functions() -> Functions:
    if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:
        return TORCHS
    return _tried()


@functools.cache
def _tried() -> Functions:
    """Our copies where they work, else torch's own."""
    try:
        found = copies()
        try_out(found)
    except Exception as error:
        log.debug("using torch.autograd, which imports more modules: %s", error)
        return TORCHS
    return found


def copies() -> Functions:
    """torch's functions with other names for what they load."""
    torchs: Any = importlib.import_module("torch._functorch.eager_transforms")
    by_tape = _copy(torch.autograd.grad, _make_grads=_without_symbols(torch.autograd._make_grads))
    light = {"_autograd_grad": _copy(torchs._autograd_grad, torch=_Torch(by_tape))}
    guarded = torchs.doesnt_support_saved_tensors_hooks  # as both are in torch
    pullback = guarded(_copy(torchs._vjp_with_argnums.__wrapped__, **light))
    with_value = guarded(_copy(torchs.grad_and_value_impl.__wrapped__, **light))
    gradient = _copy(torchs.grad_impl, grad_and_value_impl=with_value)

    def by_function(function: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
        return lambda *args, **kwargs: gradient(function, 0, has_aux, args, kwargs)

    return Functions(_copy(torchs.vjp, _vjp_with_argnums=pullback), by_function, by_tape)


def _copy(function: Any, **names: Any) -> Callable[..., Any]:
    """The same code with other values for some of its global names."""
    missing = set(names) - _names(function.__code__)
    if missing:
        raise RuntimeError(f"{function.__name__} does not use {', '.join(sorted(missing))}")
    copied = types.FunctionType(
        function.__code__, function.__globals__ | names, function.__name__, function.__defaults__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _names(code: types.CodeType) -> set[str]:
    """What code, and functions defined in it, look up by name."""
    inside = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inside))


def try_out(found: Functions) -> None:
    """Raises unless all three find the derivative of x^3 at 2."""
    x = torch.full((1,), 2.0, requires_grad=True)
    with torch.enable_grad():
        by_tape = found.autograd_grad(x**3, x, torch.ones(1))[0]
    by_function = found.grad(lambda t: (t**3).sum(), False)(x.detach())
    by_pullback = found.vjp(lambda t: t**3, x.detach())[1](torch.ones(1))[0]
    if not [float(g) for g in (by_tape, by_function, by_pullback)] == [12.0] * 3:
        raise RuntimeError("a wrong derivative")


class _Torch:
    """The module torch, with a compiled autograd that is off, and ``autograd.grad`` as given."""

    def __init__(self, by_tape: Callable[..., Any]) -> None:
        off = types.SimpleNamespace(_disable=contextlib.nullcontext)
        self._dynamo = types.SimpleNamespace(compiled_autograd=off)
        self.autograd = types.SimpleNamespace(grad=by_tape)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _without_symbols(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients that fit their outputs are taken as they are; anything else is torch's business."""

    def fits(output: Any, gradient: Any) -> bool:
        return (
            isinstance(output, Tensor) and isinstance(gradient, Tensor)
            and not (output.is_nested or gradient.is_nested)
            and output.shape == gradient.shape and output.dtype == gradient.dtype
        )  # fmt: skip

    def make_grads(outputs: Any, grads: Any, *batched: Any, **named: Any) -> Any:
        if not any((*batched, *named.values())) and all(map(fits, outputs, grads)):
            return tuple(grads)
        return usual(outputs, grads, *batched, **named)

    return make_grads
