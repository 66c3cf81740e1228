"""Wrong statistics are noticed before the first step: mended where possible, else refused."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners
from natural_langevin.run.problem import data_checks
from natural_langevin.statistics import (
    RULES,
    Call,
    Gradients,
    Network,
    Rule,
    SampleGradient,
    Sum,
    own_units,
    selfcheck,
)
from oracle import build, cross_entropy, per_sample_loop
from zoo import Folded, Scale

FISHER = [preconditioners.DiagonalFisher, preconditioners.QuasiDiagonalFisher]


class Mixing(nn.Module):
    """A sample's output depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


class Averaging(Mixing):
    """Samples share what a parameter of the network itself makes of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h + self.gain * h.mean(0)


class Alone(Mixing):
    """Does something else with a batch of one."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (2 if len(x) == 1 else 1)


def sequences() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 5, 3, generator=generator)
    return x, torch.randint(0, 3, (20,), generator=generator)


def sampler(model: nn.Module, preconditioner: preconditioners.Preconditioner) -> Langevin:
    return Langevin(
        model, likelihoods.Categorical(), preconditioner=preconditioner, chains=2, step_size=1e-3
    )


@pytest.mark.parametrize("metric", FISHER)
@pytest.mark.parametrize("network", [Mixing, Averaging, Alone])
def test_networks_without_per_sample_gradients_are_refused(
    network: type[nn.Module], metric: type[preconditioners.Preconditioner]
) -> None:
    x, y = sequences()
    message = r"'\w+(\.weight)?' is not the mean of its per-sample.*RMSProp\(\) or Euclidean"
    with pytest.raises(ValueError, match=message):
        sampler(network(), metric()).sample((x.mean(1), y), 1, batch_size=5, progress=False)


def test_an_unusual_order_of_axes_is_noticed_and_mended(caplog: pytest.LogCaptureFixture) -> None:
    """Frames before samples in one axis: no shape shows it, the numbers do."""
    model = Folded(inside_out=True).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 4, 2, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (20,), generator=generator)
    ours = sampler(model, preconditioners.QuasiDiagonalFisher())
    with caplog.at_level(logging.INFO, logger="natural_langevin"):
        ours.prepare((x, y), steps=1, batch_size=5)
    assert "the rules do not fit 'conv.weight'" in caplog.text
    gradients, state = ours.frame.gradients, ours.init()
    gradients.prepare(state.params, x[:5])
    found = gradients(
        state.params, {}, (x[:5], y[:5]), chain_axis=False,
        key=torch.zeros(2, 2, dtype=torch.int32), step=torch.zeros(()),
    )  # fmt: skip
    expected = per_sample_loop(model, cross_entropy, x[:5], y[:5])
    for name, second in expected.second.items():
        torch.testing.assert_close(found.statistics.second[name][0], second)


def test_a_wrong_rule_is_noticed_and_mended(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is wrong in its bias row alone."""

    def gradients(module: nn.Module, call: Call) -> dict[str, SampleGradient]:
        return {
            "weight": Sum((call.input * call.delta)[:, None]),
            "bias": Sum(-call.delta[:, None]),
        }

    monkeypatch.setitem(RULES, Scale, Rule(gradients, own_units))
    model = nn.Sequential(nn.Linear(3, 3), Scale())
    x, y = sequences()
    with caplog.at_level(logging.INFO, logger="natural_langevin"):
        sampler(model, preconditioners.QuasiDiagonalFisher()).prepare(
            (x.mean(1), y), steps=1, batch_size=5
        )
    assert "the rules do not fit '1.bias', '1.weight'" in caplog.text


@pytest.mark.parametrize("chain_axis", [False, True])
def test_step_checks_the_first_batch_and_only_the_first(
    chain_axis: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = sequences()
    x = x.mean(1)
    batch = (x.expand(2, -1, -1), y.expand(2, -1)) if chain_axis else (x, y)
    options = {"chains": 2, "num_data": 20}
    mixing = Langevin(Mixing(), likelihoods.Categorical(), **options)
    with pytest.raises(ValueError, match=r"not the mean of its per-sample.*RMSProp"):
        mixing.step(mixing.init(), batch, chain_axis=chain_axis)

    checked = []
    monkeypatch.setattr(data_checks, "check_statistics", lambda *args: checked.append(args))
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


def test_the_remedy_works() -> None:
    x, y = sequences()
    posterior = sampler(Mixing(), preconditioners.Euclidean()).sample(
        (x.mean(1), y), 2, batch_size=5, progress=False
    )
    assert posterior.draws == 2
    assert all(torch.isfinite(s).all() for s in posterior.samples.values())


def test_frozen_layers_need_no_rule() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3).requires_grad_(False))
    assert list(sampler(model, preconditioners.QuasiDiagonalFisher()).init().params) == [
        "0.weight",
        "0.bias",
    ]


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


def test_the_samples_that_are_fitted_worst_are_looked_at() -> None:
    """Of a class that is sure to rounding, the gradient p - 1 is nothing but rounding."""
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[40.0, 0.0], [0.0, 40.0], [0.0, 0.0]]))
        model.bias.zero_()
    x, y = torch.eye(2).repeat(10, 1), torch.arange(20) % 2
    doubtful = [3, 11, 18]
    x[doubtful] *= 0.01
    network = Network(model)
    gradients = Gradients(network, likelihoods.Categorical(), requests=frozenset({"second"}))
    params = {name: p.detach()[None] for name, p in network.trainable().items()}
    rows, labels = selfcheck._worst(gradients, params, {}, x, y)
    assert torch.equal(rows, x[doubtful])
    assert torch.equal(labels, y[doubtful])


def test_a_bias_that_a_norm_layer_takes_away_is_no_mistake() -> None:
    """Its gradient is rounding alone, by any way it is computed."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(4, 4), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 256, 3),
    )  # fmt: skip
    sampler = Langevin(model, likelihoods.Categorical(), num_data=40, chains=1, step_size=1e-4)
    state, info = sampler.step(sampler.init(), (torch.randn(8, 3, 16, 16), torch.arange(8) % 3))
    assert torch.isfinite(info.loss).all()
    assert torch.isfinite(state.params["0.bias"]).all()
