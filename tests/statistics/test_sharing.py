"""sharing="exact" and "expand": what they are, where they agree, and that each is a metric."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners
from natural_langevin.statistics import Gradients, Network, Params, Statistics
from oracle import chains_of, cross_entropy, per_sample_loop, spread
from registry import CASES, batch, evaluate, make
from zoo import Apply

#: Layers without any sharing: one position, called once.
ALONE = ["embedding, one token", "conv2d one position", "batch norm of features", "bilinear"]
#: Of every kind of layer, networks that share weights over positions.
SHARED = [
    "linear, two extra axes", "conv1d circular", "conv2d same, groups", "transposed 2d",
    "embedding", "attention, cross", "attention, extra key", "lstm", "tied head", "folded",
    "menagerie",
]  # fmt: skip


def of_positions(a: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The definition of "expand": every position as a sample, divided by the number of samples."""
    samples = len(a)
    a, delta = a.flatten(0, -2), delta.flatten(0, -2)
    products = torch.einsum("po,pi->poi", delta, a)
    return (
        products.square().sum(0) / samples,
        (products * delta[..., None]).sum(0) / samples,
        delta.square().sum(0) / samples,
    )


@pytest.mark.parametrize("name", ALONE)
def test_exact_is_expand_where_nothing_is_shared(name: str) -> None:
    params, (x, y) = chains_of(make(name, torch.float64), 3), batch(name, 4, 3, torch.float64)
    exact, expand = (
        evaluate(name, params, x, y, sharing=sharing)[0].statistics
        for sharing in ("exact", "expand")
    )
    torch.testing.assert_close(exact.second, expand.second)
    torch.testing.assert_close(exact.cross, expand.cross)


def test_expand_by_its_definition() -> None:
    """For a linear layer on sequences, from inputs and output gradients seen from outside."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), Apply(lambda h: h.mean(1)), nn.Linear(4, 3))
    model = model.double()
    x, y = torch.randn(4, 5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    h = model[0](x).detach().requires_grad_()
    (delta,) = torch.autograd.grad(cross_entropy(model[1:](h), y), h)
    gradients = Gradients(
        Network(model), likelihoods.Categorical(), requests=("second", "cross"), sharing="expand"
    )
    params = {k: p.detach()[None] for k, p in model.named_parameters()}
    gradients.prepare(params, x)
    key, step = torch.zeros(1, 2, dtype=torch.int32), torch.zeros((), dtype=torch.int64)
    found = gradients(params, {}, (x, y), chain_axis=False, key=key, step=step).statistics
    weight, cross, bias = of_positions(x, delta)
    torch.testing.assert_close(found.second["0.weight"][0], weight)
    torch.testing.assert_close(found.cross["0.bias"]["0.weight"][0], cross)
    torch.testing.assert_close(found.second["0.bias"][0], bias)


def schur_complements(statistics: Statistics) -> dict[str, Tensor]:
    """J_ii - J_0i^2 / J_00 relative to J_ii, for every weight with a bias row."""
    found = {}
    for b, row in statistics.cross.items():
        for w, cross in row.items():
            second = statistics.second[w]
            corner = spread(statistics.second[b], second)
            schur = second - cross.square() / corner.clamp_min(1e-300)
            found[w] = schur / second.clamp_min(1e-300)
    return found


@pytest.mark.parametrize("sharing", ["exact", "expand"])
@pytest.mark.parametrize("name", SHARED)
def test_schur_complements_are_not_negative(name: str, sharing: str) -> None:
    params, (x, y) = chains_of(make(name, torch.float64), 3), batch(name, 4, 3, torch.float64)
    statistics = evaluate(name, params, x, y, sharing=sharing)[0].statistics
    for w, relative in schur_complements(statistics).items():
        assert relative.min() > -1e-9, w
    # Second moments of shared weights differ, so that the option does something.
    exact = evaluate(name, params, x, y)[0].statistics
    same = all(torch.allclose(statistics.second[k], s) for k, s in exact.second.items())
    assert same == (sharing == "exact")


def test_the_preconditioner_passes_the_option_on() -> None:
    model = CASES["conv1d"].build()
    for metric in (preconditioners.DiagonalFisher, preconditioners.QuasiDiagonalFisher):
        ours = metric(sharing="expand")
        assert "sharing='expand'" in repr(ours)
        sampler = Langevin(model, likelihoods.Categorical(), preconditioner=ours)
        assert sampler.frame.gradients.sharing == "expand"
        with pytest.raises(ValueError, match='"exact" or "expand", got \'kfac\''):
            metric(sharing="kfac")


# Random architectures -----------------------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, int]:
    """A few layers on (B, channels, length), in any order, some with a residual branch."""
    torch.manual_seed(draw(st.integers(0, 99)))
    channels, layers = draw(st.sampled_from([2, 4])), []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["conv", "linear", "norm", "up", "gru", "residual", "again"]))
        bias = draw(st.booleans())
        if kind == "conv":
            layer: nn.Module = nn.Conv1d(
                channels, channels, draw(st.integers(1, 3)), stride=draw(st.integers(1, 2)),
                padding=draw(st.integers(0, 2)), dilation=draw(st.integers(1, 2)),
                groups=draw(st.sampled_from([1, 2])), bias=bias,
                padding_mode=draw(st.sampled_from(["zeros", "replicate"])),
            )  # fmt: skip
        elif kind == "up":
            layer = nn.ConvTranspose1d(
                channels, channels, 2, stride=draw(st.integers(1, 2)), bias=bias
            )
        elif kind == "norm":
            layer = draw(st.sampled_from([nn.GroupNorm(2, channels), nn.BatchNorm1d(channels)]))
        elif kind == "again" and layers:
            layer = draw(st.sampled_from(layers))  # the same module once more
        elif kind == "gru":
            layer = Transposed(nn.GRU(channels, channels, batch_first=True))
        else:
            layer = Transposed(nn.Linear(channels, channels, bias=bias))
        layers.append(Residual(layer) if kind == "residual" else layer)
    tail = [nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, 3)]
    return nn.Sequential(*layers, *tail).eval().double(), channels


class Transposed(nn.Module):
    """A layer of the last axis applied to the second."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x.mT)
        return (h[0] if isinstance(h, tuple) else h).mT


class Residual(Transposed):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu_(self.inner(x))


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks())
def test_random_architectures(drawn: tuple[nn.Module, int]) -> None:
    """Two chains; every statistic equals the loop's up to the rounding of its own unit."""
    model, channels = drawn
    x = torch.randn(2, 3, channels, 9, dtype=torch.float64)
    y = torch.randint(0, 3, (2, 3))
    params = chains_of(model, 2)
    statistics = exact_statistics(model, params, x, y)
    for c in range(2):
        own = {k: p[c] for k, p in params.items()}
        expected = per_sample_loop(model, cross_entropy, x[c], y[c], own)
        for k, second in expected.second.items():
            torch.testing.assert_close(
                statistics.second[k][c], second, rtol=1e-8, atol=1e-8 * float(second.max()) + 1e-24
            )
    for relative in schur_complements(statistics).values():
        assert relative.min() > -1e-6


def exact_statistics(model: nn.Module, params: Params, x: Tensor, y: Tensor) -> Statistics:
    metric = preconditioners.QuasiDiagonalFisher()
    sampler = Langevin(model, likelihoods.Categorical(), preconditioner=metric, chains=2)
    gradients = sampler.frame.gradients
    gradients.prepare(params, x[0])
    key, step = torch.zeros(2, 2, dtype=torch.int32), torch.zeros((), dtype=torch.int64)
    return gradients(params, {}, (x, y), chain_axis=True, key=key, step=step).statistics
