"""What people do in their own loops: accumulation, scaling, resuming, looking in between."""

from __future__ import annotations

import copy
import io
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from natural_langevin import (
    DivergenceError,
    dynamics,
    likelihoods,
    preconditioners,
    priors,
    schedules,
)
from natural_langevin.dynamics import base, frame
from natural_langevin.optim import NaturalLangevin, without_dropout
from oracle import Twice

Batch = tuple[Tensor, Tensor]


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 4), Twice(), nn.Linear(4, 3)).double()


def batches(count: int = 4, size: int = 6) -> list[Batch]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(count, size, 3, generator=generator, dtype=torch.float64)
    return list(zip(x, torch.randint(0, 3, (count, size), generator=generator), strict=True))


def make(model: nn.Module, **options: Any) -> NaturalLangevin:
    options = {"num_data": 50, "lr": 1e-3, "seed": 2} | options
    return NaturalLangevin(model, likelihoods.Categorical(), **options)


def plain(model: nn.Module, optimizer: NaturalLangevin, batch: Batch) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def assert_same(model: nn.Module, other: nn.Module, tolerance: float = 1e-12) -> None:
    for (k, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=tolerance, atol=tolerance, msg=lambda m, k=k: f"{k}: {m}"
        )


def run(step: Callable[[nn.Module, NaturalLangevin, Batch], Any], **options: Any) -> nn.Module:
    """The model after a few steps done so."""
    model = network()
    optimizer = make(model, **options)
    for batch in batches():
        step(model, optimizer, batch)
    assert optimizer.steps == len(batches())
    return model


# Other ways to the same step ----------------------------------------------------------------------


def in_pieces(model: nn.Module, optimizer: NaturalLangevin, batch: Batch) -> None:
    optimizer.zero_grad()
    for x, y in zip(batch[0].split([3, 1, 2]), batch[1].split([3, 1, 2]), strict=True):
        (F.cross_entropy(model(x), y) * (len(x) / 6)).backward()
    optimizer.step()


def pieces_in_one_backward(model: nn.Module, optimizer: NaturalLangevin, batch: Batch) -> None:
    optimizer.zero_grad()
    parts = zip(batch[0].split([4, 2]), batch[1].split([4, 2]), strict=True)
    sum(F.cross_entropy(model(x), y) * (len(x) / 6) for x, y in parts).backward()  # type: ignore[union-attr]
    optimizer.step()


def two_losses(model: nn.Module, optimizer: NaturalLangevin, batch: Batch) -> None:
    """The gradients of an output that several losses use add up before they are squared."""
    optimizer.zero_grad()
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none") / 6
    losses[:4].sum().backward(retain_graph=True)
    losses[2:4].sum().mul(-0.5).backward(retain_graph=True)
    losses[2:4].sum().mul(0.5).backward(retain_graph=True)
    losses[4:].sum().backward()
    optimizer.step()


def with_closure(model: nn.Module, optimizer: NaturalLangevin, batch: Batch) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    assert optimizer.step(closure).detach() > 0


def looking_around(model: nn.Module, optimizer: NaturalLangevin, batch: Batch) -> None:
    """Passes that no step shall see, in all the places where loops put them."""
    other = batches(5, size=5)[-1][0]
    with torch.no_grad():
        model(other)
    forgotten = model(other)  # with gradients, but never backward
    F.cross_entropy(model(other), torch.zeros(5, dtype=torch.long)).backward()
    outputs = model(batch[0])
    optimizer.zero_grad()  # between forward and backward
    model.eval()
    model(other)
    model.train()
    F.cross_entropy(outputs, batch[1]).backward()
    with torch.inference_mode():
        model(other)
    copy.deepcopy(model)(other).sum().backward()
    optimizer.step()
    assert forgotten.requires_grad


def scaled(model: nn.Module, optimizer: NaturalLangevin, batch: Batch) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(batch[0]), batch[1])).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize(
    "step",
    [in_pieces, pieces_in_one_backward, two_losses, with_closure, looking_around, scaled],
)
@pytest.mark.parametrize(
    "metric",
    [preconditioners.QuasiDiagonalFisher(), preconditioners.FullFisher(damping=1e-2)],
    ids=["quasi-diagonal", "full"],
)
def test_the_same_step(step: Any, metric: Any) -> None:
    assert_same(run(step, preconditioner=metric), run(plain, preconditioner=metric), 1e-11)


@pytest.mark.parametrize("metric", ["Euclidean", "DiagonalFisher"])
def test_summed_losses(metric: str) -> None:
    def summed(model: nn.Module, optimizer: NaturalLangevin, batch: Batch) -> None:
        optimizer.zero_grad()
        for x, y in zip(batch[0].split([5, 1]), batch[1].split([5, 1]), strict=True):
            F.cross_entropy(model(x), y, reduction="sum").backward()
        optimizer.step()

    preconditioner = getattr(preconditioners, metric)()
    options = {"preconditioner": preconditioner}
    assert_same(run(summed, reduction="sum", **options), run(plain, **options))


def test_drawn_labels_of_micro_batches_have_streams_of_their_own() -> None:
    """The statistics are those of other labels, but the metric stays one: finite and moving."""
    metric = preconditioners.DiagonalFisher(targets="model")
    model = run(in_pieces, preconditioner=metric)
    reference = run(plain, preconditioner=metric)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    assert all(0 < (a - b).abs().max() < 0.1 for a, b in pairs)


# Loss scaling and reduced precision ---------------------------------------------------------------


def test_a_step_that_overflows_is_skipped() -> None:
    model = network()
    optimizer = make(model)
    collector = optimizer.collector()
    plain(model, optimizer, batches()[0])
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = batches()[1]
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(x) * float("inf"), y)).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    assert (optimizer.steps, len(collector), scaler.get_scale()) == (1, 1, 512.0)
    reference = network()
    other = make(reference)
    for batch in batches()[:2]:
        plain(reference, other, batch)
    plain(model, optimizer, (x, y))  # with the noise that the skipped step would have drawn
    assert_same(model, reference)


def test_unscaling_before_clipping_needs_the_scaler() -> None:
    def clipped(model: nn.Module, optimizer: NaturalLangevin, batch: Batch) -> None:
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(batch[0]), batch[1])).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        scaler.step(optimizer)
        scaler.update()

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    assert_same(run(clipped, scaler=scaler), run(plain))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with pytest.raises(RuntimeError, match=r"give NaturalLangevin.*scaler=scaler"):
        run(clipped)


def test_autocast() -> None:
    """The statistics are squared in full precision: bfloat16 has 8 bits, so within a per cent."""
    x, y = batches()[0]
    found = []
    for enabled in (False, True):
        model = network().float()
        optimizer = make(model)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            outputs = model(x.float())
        F.cross_entropy(outputs.float(), y).backward()
        optimizer._fisher.gather()
        found.append(optimizer._fisher.moments(1.0, 6)["second"])
    for k, exact in found[0].items():
        assert found[1][k].dtype == torch.float32
        assert float((found[1][k] - exact).norm() / exact.norm()) < 0.03, k


def test_a_step_that_a_graph_may_record() -> None:
    """The same bits; all that the next step reads stays in its place, and lr may be a tensor."""
    models = network(), network()
    momentum = dynamics.Underdamped(integrator="baoab")
    usual = make(models[0], lr=1e-3, dynamics=momentum)
    lr = torch.tensor(1e-3, dtype=torch.float64)
    recorded = make(models[1], lr=lr, dynamics=momentum, capturable=True)
    places = []
    for step, batch in enumerate(batches()):
        if step == 2:
            usual.param_groups[0]["lr"] = 1e-4
            lr.fill_(1e-4)
        plain(models[0], usual, batch)
        plain(models[1], recorded, batch)
        own = [v for s in recorded.state.values() for v in s.values()]
        places.append([v.data_ptr() for v in (*own, recorded.param_groups[0]["step"])])
    assert places[0] == places[-1]
    assert recorded.steps == usual.steps == len(places)
    assert_same(*models, 0.0)
    torch.testing.assert_close(recorded.mean(), usual.mean(), rtol=0, atol=0)
    start = copy.deepcopy(models[1])
    x, y = batches()[0]
    recorded.zero_grad()
    (F.cross_entropy(models[1](x), y) * float("nan")).backward()
    recorded.step()  # of which nobody on the host knows
    assert_same(models[1], start, 0.0)
    with pytest.raises(ValueError, match="capturable=True goes with lr as a number"):
        make(network(), lr=schedules.halving(1e-3, 10), capturable=True)


class AsksTheHost(TorchDispatchMode):
    """Notes what would copy from the host, or make it wait, where tensors are on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::lift_fresh", "aten::_local_scalar_dense"):
            self.met.append("".join(traceback.format_stack(limit=8)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preconditioner": preconditioners.RMSProp(), "reduction": "sum"},
        {"dynamics": dynamics.Underdamped(integrator="baoab")},
        {"prior": {"2.*": priors.Gaussian(0.3), "*": priors.StudentT(1.0, 3.0)}},
    ],
    ids=["QDOP", "RMSProp, sum", "BAOAB", "priors"],
)
def test_a_step_to_be_recorded_leaves_the_host_alone(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_at_hand", lambda value: False)  # as on a device
    monkeypatch.setattr(frame, "AHEAD", 0)
    model = network()
    optimizer = make(model, capturable=True, **options)
    reduction = options.get("reduction", "mean")
    for x, y in batches(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, reduction=reduction).backward()
        optimizer.step()
    with AsksTheHost() as host:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, reduction=reduction).backward()
        optimizer.step()
    assert not host.met, host.met[0]
    with AsksTheHost() as host:
        float(torch.tensor(1.0))
    assert len(host.met) == 2


# Saving, copying, moving --------------------------------------------------------------------------


def test_resuming_bit_by_bit() -> None:
    model = network()
    optimizer = make(model, params=[{"params": "2.*", "lr": 1e-4}, {"params": "*"}])
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 3], gamma=0.1)
    collector = optimizer.collector(burn_in=1)
    for batch in batches()[:2]:
        plain(model, optimizer, batch)
        schedule.step()
    buffer = io.BytesIO()
    parts = (model, optimizer, schedule, collector)
    torch.save([p.state_dict() for p in parts], buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    again = network()
    other = make(again, params=[{"params": "2.*"}, {"params": "*"}])
    restored = torch.optim.lr_scheduler.MultiStepLR(other, milestones=[9], gamma=0.1)
    others = (again, other, restored, other.collector())
    for part, state in zip(others, saved, strict=True):
        part.load_state_dict(state)
    for batch in batches()[2:]:
        for one, its, lr in ((model, optimizer, schedule), (again, other, restored)):
            plain(one, its, batch)
            lr.step()
    assert_same(model, again, 0.0)
    torch.testing.assert_close(optimizer.state_dict(), other.state_dict(), rtol=0, atol=0)
    assert others[-1].kept == collector.kept == [2, 3, 4]


def test_copies_of_the_model_are_models_of_their_own() -> None:
    model = network()
    optimizer = make(model)
    plain(model, optimizer, batches()[0])
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for one in copies:
        one(batches()[0][0]).sum().backward()
        assert not optimizer._fisher.capture.touched
        assert_same(one, model, 0.0)
    mean = optimizer.mean_network()
    assert not any(m._forward_hooks for m in mean.modules())
    with optimizer.at_mean():
        assert_same(mean, model, 0.0)
    for k, p in mean.named_parameters():
        assert torch.equal(p, optimizer.mean()[k])
        assert not torch.equal(p, optimizer.sampled()[k]) or optimizer.steps == 1


def test_a_model_that_is_converted_after_the_optimizer_is_made() -> None:
    model = network().float()
    optimizer = make(model)
    model.double()
    model.load_state_dict(network().state_dict())
    for batch in batches()[:2]:
        plain(model, optimizer, batch)
    reference = network()
    other = make(reference)
    for batch in batches()[:2]:
        plain(reference, other, batch)
    assert_same(model, reference)


def test_parameters_whose_memory_is_replaced_between_steps() -> None:
    """As ``vector_to_parameters``, and those who swap averages in, do."""
    models = network(), network()
    optimizers = [make(model) for model in models]
    for batch in batches()[:3]:
        for model, optimizer in zip(models, optimizers, strict=True):
            plain(model, optimizer, batch)
        for p in models[1].parameters():
            p.data = p.data.clone()
    assert_same(*models, 0.0)
    assert not torch.equal(models[1][2].weight, network()[2].weight)


def test_activation_checkpoints() -> None:
    class Checkpointed(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.inner, self.reentrant = network(), reentrant

        def forward(self, x: Tensor) -> Any:
            rest = self.inner[1:]
            return checkpoint(rest, self.inner[0](x), use_reentrant=self.reentrant)

    found = {}
    for reentrant in (False, True):
        model = Checkpointed(reentrant)
        optimizer = make(model)
        found[reentrant] = (model, optimizer)
    plain(*found[False], batches()[0])
    reference = network()
    plain(reference, make(reference), batches()[0])
    assert_same(found[False][0].inner, reference)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        plain(*found[True], batches()[0])


# Groups, frozen parameters, priors ----------------------------------------------------------------


def test_groups_with_their_own_rates() -> None:
    """At temperature 0 and lr 0 a group stands still; priors go by group."""
    model = network()
    optimizer = make(
        model,
        prior={"*": priors.Flat()},
        params=[
            {"params": "0.*", "lr": 0.0},
            {"params": ["1.*"], "temperature": 0.0, "prior": priors.Gaussian(0.5)},
            {"params": list(model[2].parameters())},
        ],
    )
    assert optimizer.prior["1.block.hidden.weight"] == priors.Gaussian(0.5)
    assert optimizer.prior["2.bias"] == priors.Flat()
    start = copy.deepcopy(model)
    plain(model, optimizer, batches()[0])
    reference = copy.deepcopy(start)
    cold = make(reference, temperature=0.0, prior={"1.*": priors.Gaussian(0.5), "*": priors.Flat()})
    plain(reference, cold, batches()[0])
    assert_same(model[0], start[0], 0.0)
    assert_same(model[1], reference[1])
    assert not torch.equal(model[2].weight, reference[2].weight)


def test_units_are_not_torn_apart() -> None:
    model = network()
    groups = [{"params": "*.bias", "lr": 1e-5}, {"params": "*"}]
    with pytest.raises(ValueError, match=r"coupled by QuasiDiagonalFisher.*Put them into one"):
        plain(model, make(model, params=groups), batches()[0])
    plain(model, make(model, params=groups, preconditioner=preconditioners.DiagonalFisher()),
          batches()[0])  # fmt: skip
    with pytest.raises(ValueError, match="FullFisher"):
        make(nn.Linear(100, 100), preconditioner=preconditioners.FullFisher())


def test_frozen_parameters_stay() -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = make(model)
    start = copy.deepcopy(model)
    plain(model, optimizer, batches()[0])
    model[2].requires_grad_(False)  # and one frozen on the way
    head = model[2].weight.clone()
    plain(model, optimizer, batches()[1])
    assert_same(model[0], start[0], 0.0)
    assert torch.equal(model[2].weight, head)
    assert set(optimizer.sampled()) == {
        "1.block.hidden.weight", "1.block.hidden.bias", "2.weight", "2.bias"
    }  # fmt: skip


def test_a_parameter_that_was_frozen_at_first_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer, start = make(model), copy.deepcopy(model)
    plain(model, optimizer, batches()[0])
    assert not caplog.text
    model[0].requires_grad_(True)
    plain(model, optimizer, batches()[1])
    plain(model, optimizer, batches()[0])
    assert caplog.text.count("'0.weight' was frozen when the optimizer was made") == 1
    assert_same(model[0], start[0], 0.0)


# Errors that teach --------------------------------------------------------------------------------


def test_steps_that_cannot_be_taken() -> None:
    model = network()
    optimizer = make(model)
    x, y = batches()[0]
    with pytest.raises(RuntimeError, match=r"call loss.backward\(\)"):
        optimizer.step()
    F.cross_entropy(nn.Sequential(*model)(x), y).backward()
    with pytest.raises(RuntimeError, match=r"outside of model\(...\)"):
        optimizer.step()
    optimizer.zero_grad()
    model(x).sum().backward()
    model[2].bias.grad = None
    with pytest.raises(RuntimeError, match=r"'2.bias' has no gradient.*took no part"):
        optimizer.step()
    optimizer.zero_grad()
    x = x.clone()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    x.zero_()
    with pytest.raises(RuntimeError, match=r"changed in place.*x.clone\(\)"):
        optimizer.step()


@pytest.mark.parametrize(
    ("moves", "options", "said"),
    [
        (dynamics.NoseHoover(), {}, "needs all 64 data in every step"),
        (dynamics.Overdamped(correct_heat=True), {}, "needs the second moments"),
        (dynamics.Microcanonical(), {"temperature": 0.0}, "needs a temperature above 0"),
        (
            dynamics.Microcanonical(),
            {"params": [{"params": "0.*"}, {"params": "*", "temperature": 0.0}]},
            "needs a temperature above 0",
        ),
    ],
)
def test_runs_that_a_dynamics_cannot_do_are_refused_with_every_metric(
    moves: dynamics.Integrator, options: dict[str, Any], said: str
) -> None:
    """With one that learns nothing from the batches they were taken; of groups, the first was
    looked at."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = NaturalLangevin(
        model, likelihoods.Categorical(), num_data=64, dynamics=moves,
        preconditioner=preconditioners.Euclidean(), **options,
    )  # fmt: skip
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        F.cross_entropy(model(torch.ones(4, 3)), torch.zeros(4, dtype=torch.long)).backward()
        with pytest.raises(ValueError, match=said):
            optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("metric", [preconditioners.Euclidean(), preconditioners.RMSProp(every=3)])
@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.Dropout(0.5)])
def test_a_model_that_is_trained_again_is_refused_whatever_the_step_needs(
    metric: preconditioners.Preconditioner, layer: nn.Module
) -> None:
    """Where a step took no statistics nobody looked: model.train() switched dropout on."""
    model = nn.Sequential(nn.Linear(3, 3), layer, nn.Linear(3, 2)).eval()
    optimizer = NaturalLangevin(
        model, likelihoods.Categorical(), num_data=64, preconditioner=metric
    )
    F.cross_entropy(model(torch.ones(4, 3)), torch.zeros(4, dtype=torch.long)).backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"in training mode|is active"):
        model.train()(torch.ones(4, 3))
    model.eval()(torch.ones(4, 3))


def test_divergence_is_reported_and_nothing_moves() -> None:
    model = network()
    optimizer = make(model)
    collector = optimizer.collector()
    plain(model, optimizer, batches()[0])
    start = copy.deepcopy(model)
    x, y = batches()[1]
    (F.cross_entropy(model(x), y) * float("nan")).backward()
    with pytest.raises(DivergenceError, match=r"step 1: .*not finite.*try a tenth"):
        optimizer.step()
    assert_same(model, start, 0.0)
    assert len(collector) == 1
    with torch.no_grad():
        model[2].bias[0] = float("inf")
    optimizer.param_groups[0]["step"] = 2
    with pytest.raises(DivergenceError, match=r"'2.bias' is not finite after step 2"):
        collector.update()
    assert collector.posterior().diverged.tolist() == [2]


def test_networks_whose_likelihood_is_random() -> None:
    model = nn.Sequential(
        nn.Linear(3, 3), nn.Dropout(0.2), nn.LSTM(3, 3, dropout=0.1, num_layers=2)
    )
    with pytest.raises(ValueError, match=r"'1' is active.*without_dropout\(model\)"):
        make(model)
    make(without_dropout(model))
    batch_norm = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()
    with pytest.raises(ValueError, match="training mode"):
        make(batch_norm)
    optimizer = make(batch_norm.eval())
    batch_norm.train()
    with pytest.raises(ValueError, match="training mode"):
        plain(batch_norm, optimizer, batches()[0])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_data": None}, "num_data=len"),
        ({"lr": -1.0}, "lr must be finite"),
        ({"temperature": float("nan")}, "temperature must be finite"),
        ({"reduction": "none"}, 'reduction must be "mean" or "sum"'),
        ({"params": "nothing.*"}, "matches no trainable parameter"),
        ({"params": [{"params": "*"}, {"params": "2.*"}]}, "earlier groups have taken"),
        ({"params": [nn.Parameter(torch.zeros(3))]}, "is not a trainable parameter of the model"),
        ({"scaler": 3.0}, "must be a torch.amp.GradScaler"),
        ({"chain": -1}, "got -1"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        make(network(), **options)


class OptimizedModule(nn.Module):
    """The name of what torch.compile gives, which takes seconds to import."""

    def __init__(self) -> None:
        super().__init__()
        self._orig_mod = network()


def test_compiled_models_are_refused() -> None:
    with pytest.raises(TypeError, match="give the original module"):
        make(OptimizedModule())
