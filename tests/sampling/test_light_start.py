"""A first run loads nothing that it does not need, and leaves torch as it was."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch._functorch import eager_transforms

from natural_langevin._internal.light_autograd import light_autograd

PROGRAM = """
import gc, sys
import torch
from torch import nn
from natural_langevin import Langevin, likelihoods
x = torch.rand(100, 2)
y = (x.sum(1) > 1).long()
model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
posterior = Langevin(model, likelihoods.Categorical()).sample((x, y))
posterior.predict(x)
heavy = (
    "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy",
    "scipy", "sklearn", "pandas", "arviz", "matplotlib", "rich", "triton",
)
print([name for name in heavy if name in sys.modules])
print(gc.isenabled(), gc.get_freeze_count())
"""


def test_a_first_run_loads_no_compiler_and_no_algebra() -> None:
    """By the recipe, with all that it tries out, as in the README."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[]", "True 0"], "garbage is collected as ever"


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
