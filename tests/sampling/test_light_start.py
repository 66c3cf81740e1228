"""Gradients without the compiler that torch would load for them; torch's own are not touched.

That a first run loads nothing it does not need is in ``tests/experiments/test_torch_alone.py``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._functorch import eager_transforms

from natural_langevin._internal import light_autograd
from natural_langevin._internal.light_autograd import TORCHS, autograd_grad, grad, vjp


@pytest.fixture(autouse=True)
def without_dynamo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    light_autograd._tried.cache_clear()
    yield
    light_autograd._tried.cache_clear()


def test_gradients_are_torchs_and_torch_is_left_as_it_was() -> None:
    def gradient(pull: Any, x: torch.Tensor) -> torch.Tensor:
        value, pullback = pull(lambda t: (t**3).sum(-1), x)
        return pullback(2 * torch.ones_like(value))[0]

    own = eager_transforms._autograd_grad, torch.autograd._make_grads
    assert light_autograd._functions() is not TORCHS
    x = torch.arange(6.0).reshape(2, 3)
    found = torch.func.vmap(functools.partial(gradient, vjp))(x)
    assert torch.equal(found, torch.func.vmap(functools.partial(gradient, torch.func.vjp))(x))
    assert torch.equal(found, 6 * x**2)
    value, aux = grad(lambda t: ((t**2).sum(), t + 1), has_aux=True)(x)
    assert torch.equal(value, 2 * x)
    assert torch.equal(aux, x + 1)
    twice = grad(lambda t: grad(lambda s: (s**3).sum())(t).sum())(x)
    assert torch.equal(twice, 6 * x)
    assert (eager_transforms._autograd_grad, torch.autograd._make_grads) == own


def another_code(usual: Any) -> Any:
    """A function with a closure, as a decorator leaves behind: its code alone is no function."""

    @functools.wraps(usual)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return usual(*args, **kwargs)

    return wrapped


def another_attribute(usual: Any) -> Any:
    """One that wants something else of dynamo than it had."""

    def reaching(outputs, inputs, grad_outputs=None, retain_graph=False, create_graph=True):  # type: ignore[no-untyped-def]
        with torch._dynamo.somewhere_else():
            raise AssertionError("never reached")

    reaching.__module__ = usual.__module__
    return reaching


@pytest.mark.parametrize("change", [another_code, another_attribute, lambda usual: None])
def test_of_a_torch_that_looks_different_torchs_own_serve(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = change(eager_transforms._autograd_grad)
    monkeypatch.setattr(eager_transforms, "_autograd_grad", other)
    assert light_autograd._functions() is TORCHS


def test_where_dynamo_is_loaded_torchs_own_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo", torch)
    assert light_autograd._functions() is TORCHS


def test_gradients_that_torch_must_judge_are_judged_by_torch() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        autograd_grad(2 * x, x, torch.ones(2))
    (rows,) = autograd_grad(2 * x, x, torch.eye(3), is_grads_batched=True)
    assert torch.equal(rows, 2 * torch.eye(3))
