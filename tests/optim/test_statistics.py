"""Statistics captured from the user's own passes, against the float64 per-sample loop."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from natural_langevin import likelihoods, preconditioners
from natural_langevin.optim import NaturalLangevin
from natural_langevin.optim.capture import Pass
from natural_langevin.optim.reading import local_gradient
from natural_langevin.statistics import Evaluation, Statistics
from oracle import Twice, assert_exact, cross_entropy, per_sample_loop
from registry import CASES, batch, make


def optimizer_for(model: nn.Module, **options: object) -> NaturalLangevin:
    return NaturalLangevin(
        model, likelihoods.Categorical(), num_data=100, lr=1e-4,
        preconditioner=preconditioners.QuasiDiagonalFisher(), **options,
    )  # fmt: skip


def gathered(optimizer: NaturalLangevin) -> Evaluation:
    """Gradient and statistics as the next step would use them."""
    optimizer._fisher.gather()
    moments = optimizer._fisher.moments(1.0, optimizer._fisher.samples)
    gradient, moments = pytree.tree_map(
        lambda v: v[None], (local_gradient(optimizer.sampled()), moments)
    )
    return Evaluation(torch.zeros(1, dtype=torch.float64), gradient, Statistics(**moments), {})


def backward_in_pieces(model: nn.Module, x: Tensor, y: Tensor, sizes: list[int]) -> None:
    """The mean loss of all samples, by micro-batches."""
    for x_part, y_part in zip(x.split(sizes), y.split(sizes), strict=True):
        (cross_entropy(model(x_part), y_part) / len(x)).backward()


@pytest.mark.parametrize("name", CASES)
def test_every_layer_in_unequal_micro_batches(name: str) -> None:
    model, (x, y) = make(name, torch.float64), batch(name, 4, 1, torch.float64)
    expected = per_sample_loop(model, cross_entropy, x[0], y[0])
    optimizer = optimizer_for(model)
    backward_in_pieces(model, x[0], y[0], [3, 1])
    assert_exact(gathered(optimizer), 0, expected.samples)


class MixedUp(nn.Module):
    """Folds positions into the batch with the samples last: no rule can tell them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1).reshape(-1, 3)  # position first
        h = torch.tanh(self.inner(rows)).reshape(x.shape[1], len(x), 4)
        return self.head(h.mean(0))


def test_a_layer_whose_rule_does_not_fit() -> None:
    """The check against single samples notices, and the whole network is asked from then on."""
    model = MixedUp().double()
    x, y = torch.randn(4, 2, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    expected = per_sample_loop(model, cross_entropy, x, y)
    optimizer = optimizer_for(model)
    backward_in_pieces(model, x, y, [3, 1])
    assert_exact(gathered(optimizer), 0, expected.samples)


class OwnLoss(nn.Module):
    """Computes the mean loss itself, from arguments by keyword, some of which are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = make("bilinear", torch.float64)

    def forward(self, *, inputs: dict[str, Tensor], labels: Tensor, kind: str) -> dict[str, Tensor]:
        logits = self.body(inputs["x"])
        return {"logits": logits, kind: F.cross_entropy(logits, labels)}


def test_a_network_that_computes_its_own_loss() -> None:
    (x,), (y,) = batch("bilinear", 4, 1, torch.float64)
    model = OwnLoss()
    expected = per_sample_loop(copy.deepcopy(model.body), cross_entropy, x, y)
    optimizer = optimizer_for(model)
    model(inputs={"x": x}, labels=y, kind="loss")["loss"].backward()
    samples = {f"body.{k}": g for k, g in expected.samples.items()}
    assert_exact(gathered(optimizer), 0, samples)


def test_activations_go_with_their_graph() -> None:
    """A pass that no backward follows keeps nothing alive, without the garbage collector."""
    model = nn.Sequential(nn.Linear(3, 4), Twice(), nn.Linear(4, 3))
    optimizer = optimizer_for(model)
    x = torch.randn(5, 3)
    gc.collect()
    gc.disable()
    try:
        others = [o for o in gc.get_objects() if type(o) is Pass]  # of tests before
        outputs = model(x)
        (one,) = [o for o in gc.get_objects() if type(o) is Pass and o not in others]
        seen = weakref.ref(one)
        del one, outputs
        assert seen() is None
    finally:
        gc.enable()
    assert optimizer.steps == 0


class Choosy(nn.Module):
    """Skips a mask that masks nothing, as attention code does, and adds what has no batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.layer = nn.Embedding(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = x.abs() > 1e-3
        h = x if mask.all() else x * mask
        return self.layer(h + self.places(torch.arange(4)).sum(0))


@pytest.mark.parametrize("metric", ["QuasiDiagonalFisher", "FullFisher"])
def test_a_network_that_cannot_be_transformed(metric: str) -> None:
    """Refused in words where single samples would have to be run again; otherwise it works."""
    x, y = torch.randn(6, 4), torch.arange(6) % 3

    def step(model: nn.Module, name: str) -> None:
        preconditioner = getattr(preconditioners, name)()
        optimizer = NaturalLangevin(
            model, likelihoods.Categorical(), num_data=50, preconditioner=preconditioner
        )
        optimizer.loss(model(x), y).backward()
        optimizer.step()

    with pytest.raises(ValueError, match="looks at the values of a tensor") as caught:
        step(Choosy(), metric)
    remedy = "QuasiDiagonalFisher()" if metric == "FullFisher" else "requires_grad_(False)"
    for word in ("test_statistics.py", remedy, "RMSProp()", "torch.where"):
        assert word in str(caught.value)
    head = Choosy()
    head.places.requires_grad_(False)
    before = head.layer.weight.detach().clone()
    step(head, "QuasiDiagonalFisher")  # its statistics are read off the user's own pass
    assert not torch.equal(before, head.layer.weight)
    step(Choosy(), "RMSProp")
