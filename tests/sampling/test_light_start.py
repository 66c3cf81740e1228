"""A first run loads nothing that it does not need, and leaves torch as it was."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch._functorch import eager_transforms

from natural_langevin._internal.light_autograd import light_autograd

PROGRAM = """
import sys
import torch
from torch import nn
from natural_langevin import Langevin, likelihoods
x = torch.rand(50, 2)
y = (x.sum(1) > 1).long()
model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
posterior = Langevin(model, likelihoods.Categorical()).sample((x, y), 20, progress=False)
posterior.predict(x)
heavy = ("torch._dynamo", "torch.distributed.tensor", "sympy", "scipy", "arviz", "matplotlib")
print([name for name in heavy if name in sys.modules])
"""


def test_a_first_run_loads_no_compiler_and_no_algebra() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


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
