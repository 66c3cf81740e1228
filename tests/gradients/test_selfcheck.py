"""Networks whose statistics the rules would get wrong are refused before the first step."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin import Langevin, checks, likelihoods, preconditioners
from oracle import build

FISHER = [preconditioners.DiagonalFisher, preconditioners.QuasiDiagonalFisher]


class Tied(nn.Module):
    """Decoder weight = encoder weight: one parameter, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(x)))


class Functional(nn.Module):
    """The layer's weight is used a second time, where no hook sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.layer(x)), self.layer.weight)


class BatchSecond(nn.Module):
    """Works on (time, batch, feature) inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x.transpose(0, 1))).mean(0)


class Flattened(BatchSecond):
    """Sequences folded into the batch axis."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x.flatten(0, 1))).unflatten(0, x.shape[:2]).mean(1)


class Mixing(BatchSecond):
    """A sample's output depends on the others."""

    def forward(self, x: Tensor) -> Tensor:
        h = x.mean(1)
        return self.layer(h - h.mean(0))


def sequences() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 5, 3, generator=generator)
    return x, torch.randint(0, 3, (20,), generator=generator)


def sampler(model: nn.Module, preconditioner: preconditioners.Preconditioner) -> Langevin:
    return Langevin(model, likelihoods.Categorical(), preconditioner=preconditioner, chains=2)


@pytest.mark.parametrize("metric", FISHER)
@pytest.mark.parametrize(
    ("network", "batch_size"),
    # A batch of one mixes nothing.
    [(n, b) for n in (Tied, Functional, BatchSecond, Flattened) for b in (1, 5)] + [(Mixing, 5)],
)
def test_wrong_statistics_are_refused(
    network: type[nn.Module], metric: type[preconditioners.Preconditioner], batch_size: int
) -> None:
    unruly = network()
    x, y = sequences()
    x = x.mean(1) if network in (Tied, Functional) else x
    with pytest.raises(ValueError, match=r"'\w+\.weight' do not match.*RMSProp\(\) or Euclidean"):
        sampler(unruly, metric()).sample((x, y), 1, batch_size=batch_size, progress=False)


@pytest.mark.parametrize("chain_axis", [False, True])
def test_step_refuses_wrong_statistics_too(
    chain_axis: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch is checked, and only the first."""
    x, y = sequences()
    x = x.mean(1)
    batch = (x.expand(2, -1, -1), y.expand(2, -1)) if chain_axis else (x, y)
    options = {"chains": 2, "num_data": 20}
    tied = Langevin(Tied(), likelihoods.Categorical(), **options)
    with pytest.raises(ValueError, match=r"'\w+\.weight' do not match.*RMSProp\(\) or Euclidean"):
        tied.step(tied.init(), batch, chain_axis=chain_axis)

    checked = []
    monkeypatch.setattr(checks, "check_statistics", lambda *args: checked.append(args))
    fine = Langevin(build("bias"), likelihoods.Categorical(), **options)
    state = fine.init()
    for _ in range(3):
        state, _ = fine.step(state, batch, chain_axis=chain_axis)
    assert len(checked) == 1


def test_step_refuses_labels_that_do_not_fit() -> None:
    x, y = sequences()
    fine = Langevin(build("bias"), likelihoods.Categorical(), chains=2, num_data=20)
    with pytest.raises(ValueError, match=r"0 \.\. 2"):
        fine.step(fine.init(), (x.mean(1), y + 1))


@pytest.mark.parametrize("model", [Tied, Functional])
def test_the_remedy_works(model: type[nn.Module]) -> None:
    x, y = sequences()
    posterior = sampler(model(), preconditioners.Euclidean()).sample(
        (x.mean(1), y), 2, batch_size=5, progress=False
    )
    assert posterior.draws == 2
    assert all(torch.isfinite(s).all() for s in posterior.samples.values())


def test_layers_without_rule_are_named() -> None:
    model = nn.ModuleDict({"conv": nn.Conv1d(1, 2, 3), "fine": nn.Linear(2, 2)})
    model["norm"] = nn.LayerNorm(2)
    for metric in FISHER:
        with pytest.raises(TypeError) as error:
            sampler(model, metric())
        message = str(error.value)
        for words in ("conv (Conv1d: ['weight', 'bias'])", "norm (LayerNorm", "Linear", "freeze"):
            assert words in message
        assert "fine (" not in message


def test_frozen_layers_need_no_rule() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3).requires_grad_(False))
    assert list(sampler(model, preconditioners.QuasiDiagonalFisher()).init().params) == [
        "0.weight",
        "0.bias",
    ]


def test_a_parameter_of_the_model_itself_is_named() -> None:
    model = build("bias")
    model.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(TypeError, match=r"the model itself \(Sequential: \['scale'\]\)"):
        sampler(model, preconditioners.DiagonalFisher())


def test_training_batch_norm_is_refused_with_the_remedy() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match=r"'1' \(BatchNorm1d\) is in training mode.*model\.eval"):
        sampler(model, preconditioners.Euclidean())
    assert sampler(model.eval(), preconditioners.Euclidean()).init().params.keys() >= {"1.weight"}


def test_dropout_is_off_on_the_copy_alone(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    with caplog.at_level(logging.INFO, logger="natural_langevin"):
        ours = sampler(model, preconditioners.QuasiDiagonalFisher())
    assert "dropout layer '1' is switched off" in caplog.text
    assert model[1].training
    assert not ours.model[1].training
    x, y = sequences()
    generator_state = torch.get_rng_state()
    posterior = ours.sample((x.mean(1), y), 2, batch_size=5, progress=False)
    # A dropout mask would have been drawn from the global generator.
    assert torch.equal(generator_state, torch.get_rng_state())
    prediction = posterior.predict(x.mean(1))
    assert torch.equal(prediction.mean, posterior.predict(x.mean(1)).mean)


def test_the_users_model_is_never_touched() -> None:
    model = build("everything")
    model.embed.register_forward_hook(lambda *_: None)
    before = copy.deepcopy(model.state_dict())
    ids = [id(p) for p in model.parameters()]
    frozen = [p.requires_grad for p in model.parameters()]
    x, y = sequences()
    posterior = sampler(model, preconditioners.QuasiDiagonalFisher()).sample(
        (x, y), 3, batch_size=5, progress=False
    )
    posterior.predict(x)
    assert ids == [id(p) for p in model.parameters()]
    assert frozen == [p.requires_grad for p in model.parameters()]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert [len(m._forward_hooks) for m in model.modules()] == [
        int(m is model.embed) for m in model.modules()
    ]
    assert all(m.training for m in model.modules())
    assert not any(torch.equal(posterior.samples[k][0, -1], before[k]) for k in posterior.samples)
