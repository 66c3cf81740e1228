"""The optimizer's step by kernels is its step by torch's operations, number by number."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin import dynamics, likelihoods, preconditioners, priors
from natural_langevin.optim import NaturalLangevin, update
from natural_langevin.statistics.rules import base
from pairwise import covering

METRICS = {
    "QDOP": preconditioners.QuasiDiagonalFisher(),
    "QDOP, every second step": preconditioners.QuasiDiagonalFisher(every=2),
    "diagonal": preconditioners.DiagonalFisher(fresh=True),
    "RMSProp": preconditioners.RMSProp(),
    "Euclidean": preconditioners.Euclidean(),
}
DYNAMICS = {
    "overdamped": None,
    "euler": dynamics.Underdamped(),
    "baoab": dynamics.Underdamped(integrator="baoab"),
}
PRIORS = {
    "Gaussian": priors.Gaussian(0.1, 0.2),
    "several": {"0.*": priors.Laplace(0.5), "1.*": priors.Flat(), "*": priors.Gaussian(0.3)},
}


def network() -> nn.Module:
    """Units with and without biases, with one weight and with many, and a row that does not fill
    whole blocks of noise."""
    return nn.Sequential(
        nn.Conv2d(2, 40, 3, bias=False), nn.GroupNorm(4, 40), nn.Flatten(), nn.Linear(160, 5),
    )  # fmt: skip


def run(options: dict[str, Any], dtype: torch.dtype = torch.float32) -> tuple[Any, list[Tensor]]:
    torch.manual_seed(0)
    model = network().to(dtype)
    optimizer = NaturalLangevin(
        model, likelihoods.Categorical(), num_data=200, lr=1e-2, check_loss=False, **options
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randn(6, 2, 4, 4, generator=generator).to(dtype)
        y = torch.randint(0, 5, (6,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    kept = [v for s in optimizer.state.values() for v in s.values()]
    return optimizer, [*(p.detach() for p in model.parameters()), *kept]


@pytest.mark.parametrize(
    ("metric", "prior", "motion"), covering([*METRICS], [*PRIORS], [*DYNAMICS])
)
def test_the_same_step(
    metric: str, prior: str, motion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "preconditioner": METRICS[metric], "prior": PRIORS[prior], "dynamics": DYNAMICS[motion],
    }  # fmt: skip
    optimizer, by_kernels = run(options)
    used = [k for _, update in optimizer._updates for k in update._kernels.values()]
    # Of RMSProp the metric is of the loss's gradient alone, which a prior's pull is no part of.
    assert all(k is not None for k in used) == (metric != "RMSProp" or prior == "Gaussian")
    with monkeypatch.context() as patch:
        patch.setattr(update, "backend_for", lambda device: None)
        _, by_operations = run(options)
    for found, expected in zip(by_kernels, by_operations, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


def test_kernels_that_were_never_seen_are_tried_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = update.backend_for(torch.device("cpu"))
    assert backend is not None
    trying = backend._replace(build=lambda *_: None)
    monkeypatch.setattr(update, "backend_for", lambda device: trying)
    optimizer, right = run({})
    assert next(iter(optimizer._updates[0][1]._kernels.values())) is not None
    wrong = trying._replace(update_=lambda layers, _: [s.weight.add_(1.0) for _, s, _ in layers])
    monkeypatch.setattr(update, "backend_for", lambda device: wrong)
    _, found = run({})
    assert "they disagree on" in caplog.text
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


def test_a_graph_that_is_still_to_be_followed_notices_the_step() -> None:
    """As with torch's own optimizers: what a step writes over counts as changed in place."""
    torch.manual_seed(0)
    model = network()
    optimizer = NaturalLangevin(model, likelihoods.Categorical(), num_data=20, check_loss=False)
    x, y = torch.randn(6, 2, 4, 4), torch.arange(6) % 5
    late = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.backward()


def test_a_step_that_forms_its_own_statistics_is_the_same_after_a_restart() -> None:
    """Of linear layers the step is handed inputs and output gradients, at the first step as well:
    a resumed loop has the bits of one that was never stopped."""

    def steps(optimizer: NaturalLangevin, start: int, stop: int) -> None:
        for k in range(start, stop):
            generator = torch.Generator().manual_seed(k)
            x, y = torch.randn(6, 7, generator=generator), torch.arange(6) % 3
            optimizer.zero_grad()
            F.cross_entropy(optimizer.model(x), y).backward()
            optimizer.step()

    def made() -> NaturalLangevin:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
        return NaturalLangevin(model, likelihoods.Categorical(), num_data=60, lr=1e-2)

    one, first, second = made(), made(), made()
    found: list[Any] = []
    moments = one._fisher.moments
    one._fisher.moments = lambda *asked: found.append(moments(*asked)) or found[-1]
    steps(one, 0, 5)
    assert [list(f) for f in found] == [["calls"]] * 5
    assert set(found[0]["calls"]) == {"0.weight", "2.weight"}
    steps(first, 0, 3)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(first.state_dict())
    steps(second, 3, 5)
    for a, b in zip(one.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


CONVOLUTIONS = {
    "one axis, strided": (nn.Conv1d(3, 5, 4, stride=2, padding=1), (3, 17)),
    "two axes, dilated": (nn.Conv2d(3, 6, (3, 2), dilation=(1, 2), padding=(2, 0)), (3, 6, 7)),
    "the same size": (nn.Conv2d(4, 9, 3, padding="same", bias=False), (4, 5, 5)),
    "three axes": (nn.Conv3d(2, 4, 2, padding=1), (2, 3, 4, 2)),
    "inputs that lie channels last": (nn.Conv2d(3, 8, 3), (3, 6, 6)),
}


@pytest.mark.parametrize("kind", [*CONVOLUTIONS])
def test_steps_of_convolutions(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 17 samples: no whole number of vectors."""
    layer, shape = CONVOLUTIONS[kind]

    def steps() -> list[Tensor]:
        torch.manual_seed(0)
        layer.reset_parameters()  # whoever else has drawn numbers before
        model = nn.Sequential(copy.deepcopy(layer), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
        model(torch.zeros(1, *shape))
        optimizer = NaturalLangevin(
            model, likelihoods.Categorical(), num_data=60, lr=1e-2, check_loss=False
        )
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(17, *shape)
            x = x.to(memory_format=torch.channels_last) if "last" in kind else x
            F.cross_entropy(model(x), torch.arange(17) % 3).backward()
            optimizer.step()
        kept = [v for s in optimizer.state.values() for v in s.values()]
        return [*(p.detach() for p in model.parameters()), *kept]

    by_kernels = steps()
    monkeypatch.setattr(update, "backend_for", lambda device: None)
    monkeypatch.setattr(base, "native", lambda *_: False)
    for found, expected in zip(by_kernels, steps(), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


def test_parameters_laid_elsewhere_have_the_same_step() -> None:
    """A loop may put other memory into a parameter, which kernels do not read."""

    def steps(*, strange: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Flatten(), nn.Linear(64, 3))
        optimizer = NaturalLangevin(
            model, likelihoods.Categorical(), num_data=60, lr=1e-2, check_loss=False
        )
        for k in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(5, 2, 4, 4)), torch.arange(5) % 3).backward()
            if strange and k == 1:
                for p in model.parameters():
                    p.data = p.data[..., None].expand(*p.shape, 2).clone()[..., 0]
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    for found, expected in zip(steps(strange=True), steps(strange=False), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)
