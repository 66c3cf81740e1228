"""Gradients without the compiler that torch would load for them; torch is left as it was.

That a first run loads nothing it does not need is in ``tests/experiments/test_torch_alone.py``."""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest
import torch
from torch._functorch import eager_transforms

from natural_langevin._internal.light_autograd import light_autograd


def test_gradients_are_the_same_and_torch_is_left_as_it_was(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def gradient(x: torch.Tensor) -> torch.Tensor:
        value, pullback = torch.func.vjp(lambda t: (t**3).sum(-1), x)
        return pullback(2 * torch.ones_like(value))[0]

    x = torch.arange(6.0).reshape(2, 3)
    expected = torch.func.vmap(gradient)(x)
    own = eager_transforms._autograd_grad, torch.autograd._make_grads
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    with light_autograd():
        assert eager_transforms._autograd_grad is not own[0]
        with light_autograd():
            found = torch.func.vmap(gradient)(x)
        assert torch.autograd._make_grads is not own[1]
    assert (eager_transforms._autograd_grad, torch.autograd._make_grads) == own
    assert torch.equal(found, expected)
    assert torch.equal(found, 6 * x**2)


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
def test_a_torch_that_looks_different_is_left_alone(change, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    other = change(eager_transforms._autograd_grad)
    monkeypatch.setattr(eager_transforms, "_autograd_grad", other)
    symbols = torch.autograd._make_grads
    with light_autograd():
        assert eager_transforms._autograd_grad is other
        assert torch.autograd._make_grads is symbols


def test_gradients_that_torch_must_judge_are_judged_by_torch(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    x = torch.ones(3, requires_grad=True)
    with light_autograd():
        with pytest.raises(RuntimeError, match="Mismatch in shape"):
            torch.autograd.grad(2 * x, x, torch.ones(2))
        (rows,) = torch.autograd.grad(2 * x, x, torch.eye(3), is_grads_batched=True)
    assert torch.equal(rows, 2 * torch.eye(3))
