"""Refusals before the first step; and what torch.func cannot take but need not be refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.statistics import restore_layers

TOKENS = torch.arange(40).reshape(20, 2) % 5
X, Y = torch.linspace(-1, 1, 60).reshape(20, 3), torch.arange(20) % 3


def sampler(model: nn.Module, metric: preconditioners.Preconditioner | None = None) -> Langevin:
    return Langevin(
        model, likelihoods.Categorical(), chains=2, step_size=1e-5,
        preconditioner=metric or preconditioners.QuasiDiagonalFisher(),
    )  # fmt: skip


class Then(nn.Module):
    """A linear layer, then any function of its output."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(3, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.phase = nn.Linear(3, 3), nn.Parameter(torch.zeros(3, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.phase.real


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return g * 2


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.qint8)
    model = nn.Linear(3, 3)
    model.register_buffer("table", table)
    return model


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(nn.Linear(3, 3), torch.zeros(1, 3))


def tokens(**options: object) -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 3, **options), nn.Flatten(), nn.Linear(6, 3))


VECTORISED = ["cannot be vectorised", "torch.where", "setup_context"]
REFUSED: dict[str, tuple[Callable[[], nn.Module], type[Exception], list[str]]] = {
    "training batch norm": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
        ValueError, ["'1' (BatchNorm1d)", "training mode", "model.eval()", "GroupNorm"]),
    "batch norm without averages": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval(),
        ValueError, ["no running statistics", "track_running_stats=True"]),
    "training instance norm": (
        lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        ValueError, ["updates its running statistics", "model.eval()"]),
    "sparse gradients": (
        lambda: tokens(sparse=True), ValueError, ["'0' (Embedding)", "sparse=False", "freeze"]),
    "embedding that renormalises": (
        lambda: tokens(max_norm=1.0), ValueError, ["max_norm", "prior"]),
    "embedding that rescales": (
        lambda: tokens(scale_grad_by_freq=True), ValueError, ["scale_grad_by_freq"]),
    "complex parameters": (
        Complex, TypeError, ["'phase'", "complex64", "real and the imaginary part"]),
    "quantised weights": (quantised, TypeError, ["'table'", "quantised", "afterwards"]),
    "lazy module": (
        lambda: nn.Sequential(nn.LazyLinear(3)), ValueError,
        ["'0.weight'", "no shape yet", "call the model once"]),
    "scripted": (scripted, TypeError, ["torch.jit", "the nn.Module it was made from"]),
    "if of a tensor": (
        lambda: Then(lambda h: h if h.sum() > 0 else -h), ValueError, VECTORISED),
    "item": (lambda: Then(lambda h: h * h.max().item()), ValueError, VECTORISED),
    "boolean index": (lambda: Then(lambda h: h + h[h > 0].sum()), ValueError, VECTORISED),
    "own autograd function": (lambda: Then(OwnFunction.apply), ValueError, VECTORISED),
}  # fmt: skip


@pytest.mark.parametrize("metric", ["quasi-diagonal", "euclidean"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_the_first_step(
    name: str, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LangevinDynamics, "step", lambda *_, **__: pytest.fail("a step was taken"))
    build, error, words = REFUSED[name]
    model = build()
    with pytest.raises(error) as caught:
        sampler(model, preconditioners.REGISTRY[metric]()).sample(
            (X, Y), 1, batch_size=5, progress=False
        )
    for word in words:
        assert word in str(caught.value)


def test_a_condition_on_the_inputs_is_refused_too() -> None:
    """Every chain has inputs of its own."""

    class OnInput(Then):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if x.sum() > 0 else -self.layer(x)

    with pytest.raises(ValueError, match="cannot be vectorised"):
        sampler(OnInput(torch.tanh)).sample((X, Y), 1, batch_size=5, progress=False)


def test_a_frozen_table_may_be_sparse() -> None:
    model = tokens(sparse=True)
    model[0].weight.requires_grad_(False)
    assert sampler(model).sample((TOKENS, Y), 2, batch_size=5, progress=False).draws == 2


# What is mended -----------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.inner, self.head = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.head(self.inner(x))
        return self.head(checkpoint(self.inner, x, use_reentrant=self.reentrant))


def draws(model: nn.Module, x: Tensor = X) -> Posterior:
    return sampler(model).sample((x, Y), 3, batch_size=5, progress=False)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_networks_give_the_same_samples(reentrant: bool) -> None:
    plain, ours = Checkpointed(reentrant=None), Checkpointed(reentrant=reentrant)
    ours.load_state_dict(plain.state_dict())
    expected, found = draws(plain), draws(ours)
    for name, samples in expected.samples.items():
        assert torch.equal(found.samples[name], samples)
    assert torch.equal(found.predict(X).mean, expected.predict(X).mean)
    # Outside, checkpoints are what they were.
    ours(X.clone().requires_grad_()).sum().backward()
    assert ours.inner[0].weight.grad is not None


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised inside torch.compile
@pytest.mark.parametrize("nested", [False, True])
def test_compiled_models_are_taken_as_they_were(nested: bool, tmp_path) -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 3)))
    ours = torch.compile(plain, backend="eager")
    if nested:
        ours = nn.Sequential(plain[0], torch.compile(plain[1], backend="eager"))
    expected, found = draws(plain), draws(ours)
    assert list(found.samples) == ["0.weight", "0.bias", "1.1.weight", "1.1.bias"]
    for name, samples in expected.samples.items():
        assert torch.equal(found.samples[name], samples)
    found.save(tmp_path / "posterior")
    loaded = Posterior.load(tmp_path / "posterior", ours)
    assert torch.equal(loaded.predict(X).mean, found.predict(X).mean)


def test_channels_last_changes_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.GroupNorm(2, 4),
        nn.Conv2d(4, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    x = torch.randn(20, 3, 6, 6)
    expected = draws(model, x)
    found = draws(
        model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    )
    for name, samples in expected.samples.items():
        torch.testing.assert_close(found.samples[name], samples, rtol=1e-4, atol=1e-5)


def test_networks_handed_out_are_torchs_own() -> None:
    """Layers that were rewritten to be vectorised are themselves again, and compute the same."""

    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(1, 4, batch_first=True), nn.Bilinear(4, 4, 3)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.norm = nn.BatchNorm1d(3).eval()

        def forward(self, x: Tensor) -> Tensor:
            h = self.lstm(x[..., None])[0]
            h = self.norm(self.attention(h, h, h)[0])
            return self.head(h[:, 0], h[:, 1])

    model = Sequences()
    posterior = draws(model)
    network = posterior.network(0, -1)
    assert [type(m) for m in network.modules()] == [type(m) for m in model.modules()]
    assert {type(m).__module__.split(".")[0] for m in network.children()} == {"torch"}
    samples = posterior.predict(X).samples
    torch.testing.assert_close(network(X).softmax(-1), samples[posterior.draws - 1])
    restore_layers(network)  # does nothing to what is restored
    assert isinstance(network.lstm, nn.LSTM)
