"""``copy.deepcopy`` and ``pickle`` of the optimizer: both go on with the same bits."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from natural_langevin import likelihoods, preconditioners, priors, schedules
from natural_langevin.optim import NaturalLangevin

X, Y = torch.linspace(-1, 1, 60).reshape(20, 3), torch.arange(20) % 3


def made(**options: Any) -> NaturalLangevin:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    settings = {"num_data": 20, "lr": 1e-2, "seed": 3, "chain": 2} | options
    return NaturalLangevin(model, likelihoods.Categorical(), **settings)


def step(optimizer: NaturalLangevin) -> None:
    optimizer.zero_grad()
    F.cross_entropy(optimizer.model(X), Y).backward()
    optimizer.step()


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "rmsprop": {"preconditioner": preconditioners.RMSProp(), "temperature": 0.5},
    "schedule": {"lr": schedules.halving(1e-2, every=2)},
    "groups": {
        "params": [
            {"params": "*.bias", "lr": 1e-3, "prior": priors.Laplace(0.3)},
            {"params": "0.*", "temperature": 0.1},
            {"params": "2.weight"},
        ],
        "preconditioner": preconditioners.DiagonalFisher(),
    },
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)), lambda o: copy.deepcopy([o.model, o])],
    ids=["deepcopy", "pickle", "with its model"],
)
def test_the_copy_goes_on_as_the_original_does(name: str, copied: Any) -> None:
    one = made(**SETTINGS[name])
    for _ in range(3):
        step(one)
    other = copied(one)
    if isinstance(other, list):
        assert other[0] is other[1].model
        other = other[1]
    assert other.model is not one.model
    assert other.describe() == one.describe()
    before = [p.clone() for p in one.model.parameters()]
    for _ in range(3):
        step(other)
    assert all(map(torch.equal, before, one.model.parameters()))  # a copy's steps are its own
    for _ in range(3):
        step(one)
    assert one.steps == other.steps == 6
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))
    for name, mean in one.mean().items():
        assert torch.equal(mean, other.mean()[name])


@pytest.mark.parametrize("name", ["default", "rmsprop", "full"])
def test_a_state_that_was_loaded_is_a_copy(name: str) -> None:
    """``state_dict`` holds the tensors themselves: what it was loaded into leaves them alone."""
    full = {"preconditioner": preconditioners.FullFisher(damping=1e-2)}
    settings = SETTINGS.get(name, full)
    one, other = made(**settings), made(**settings)
    for _ in range(3):
        step(one)
    other.model.load_state_dict(one.model.state_dict())
    other.load_state_dict(one.state_dict())
    for _ in range(3):
        step(other)
    for _ in range(3):
        step(one)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def other_state(name: str) -> dict[str, Any]:
    if name == "another optimizer":
        return torch.optim.Adam(made().model.parameters()).state_dict()
    options = {"preconditioner": preconditioners.RMSProp()} if name == "another metric" else {}
    optimizer = made(**options)
    if name == "another model":
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
        optimizer = NaturalLangevin(model, likelihoods.Categorical(), num_data=20)
    step(optimizer)
    return optimizer.state_dict()


@pytest.mark.parametrize("name", ["another optimizer", "another metric", "another model"])
def test_the_state_of_something_else_is_refused_and_changes_nothing(name: str) -> None:
    optimizer = made()
    with pytest.raises(ValueError, match=r"another optimizer|preconditioner or optimizer"):
        optimizer.load_state_dict(other_state(name))
    step(optimizer)
    assert optimizer.steps == 1


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool) -> None:
    """The same statistics with it, or an error that says how."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.again:
                hidden = checkpoint(self.hidden, x, use_reentrant=reentrant)
            else:
                hidden = self.hidden(x)
            return self.two(hidden)

        def hidden(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x).tanh()

    models = []
    for again in (False, True):
        torch.manual_seed(0)
        model = Network()
        model.again = again
        optimizer = NaturalLangevin(model, likelihoods.Categorical(), num_data=20, lr=1e-2)
        if again and reentrant:
            with pytest.raises(ValueError, match="use_reentrant=False"):
                step(optimizer)
            return
        step(optimizer)
        models.append(model)
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))
