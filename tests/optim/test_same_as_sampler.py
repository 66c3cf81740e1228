"""In a loop of one's own the iterates are those of ``Langevin`` with one chain."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from natural_langevin import Langevin, dynamics, likelihoods, preconditioners, priors, schedules
from natural_langevin.optim import NaturalLangevin
from zoo import Apply

STEPS = 9


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))


def mixed() -> nn.Module:
    """A convolution, an embedding, a norm and a linear layer over the positions of a sequence."""
    return nn.Sequential(
        Apply(lambda x: (x > 0).long()), nn.Embedding(2, 4), nn.LayerNorm(4), nn.Linear(4, 4),
        nn.ReLU(inplace=True), nn.Conv1d(4, 2, 2, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(10, 3),
    )  # fmt: skip


NETWORKS = {"linear": linear, "mixed": mixed}
#: Step sizes at which the chains stay calm: rounding grows no faster than they mix.
METRICS = {
    "euclidean": (preconditioners.Euclidean(), 1e-2),
    "rmsprop": (preconditioners.RMSProp(), 1e-3),
    "diagonal": (preconditioners.DiagonalFisher(damping=1e-2), 1e-3),
    "quasi-diagonal": (preconditioners.QuasiDiagonalFisher(damping=1e-2), 1e-3),
    "quasi-diagonal, model": (
        preconditioners.QuasiDiagonalFisher(damping=1e-2, targets="model"), 1e-3,
    ),
    "unit": (preconditioners.UnitFisher(damping=1e-2), 1e-3),
    "kronecker": (preconditioners.KroneckerFisher(damping=1e-2), 1e-3),
    "kronecker, model": (
        preconditioners.KroneckerFisher(damping=1e-2, targets="model", sharing="reduce"), 1e-3,
    ),
    "kronecker, refreshed": (preconditioners.KroneckerFisher(damping=1e-2, refresh=4), 1e-3),
    "eigen": (preconditioners.EigenKroneckerFisher(damping=1e-2, refresh=4), 1e-3),
    "full": (preconditioners.FullFisher(damping=1e-2), 1e-3),
    "full, model": (preconditioners.FullFisher(damping=1e-2, targets="model"), 1e-3),
}  # fmt: skip


def batches(count: int, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, size, 4, generator=generator, dtype=torch.float64)
    return list(zip(x, torch.randint(0, 3, (count, size), generator=generator), strict=True))


#: Drawn labels do not depend on the layers: the mixed network is run with the data's own.
#: Its two tokens leave null spaces in A, whose eigenvectors hang on rounding: none that are kept.
CASES = [
    (n, m)
    for n in NETWORKS
    for m in METRICS
    if n == "linear" or not {"model", "refreshed", "eigen"} & set(m.split(", "))
]


@pytest.mark.parametrize(("name", "metric"), CASES)
def test_the_same_iterates(name: str, metric: str) -> None:
    model = NETWORKS[name]().double()
    preconditioner, eta = METRICS[metric]
    prior = {"*.bias": priors.Gaussian(1.0, mean=0.1), "*": priors.NormalInverseGamma()}
    options = {"prior": prior, "preconditioner": preconditioner, "num_data": 50, "seed": 5}
    sampler = Langevin(
        model, likelihoods.Categorical(), chains=1, step_size=schedules.halving(eta, 4),
        temperature=0.9, **options,
    )  # fmt: skip
    optimizer = NaturalLangevin(
        model, likelihoods.Categorical(), lr=eta, temperature=0.9, **options
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[4, 8], gamma=0.5)
    state = sampler.init()
    for x, y in batches(STEPS):
        state, _ = sampler.step(state, (x, y))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
    moved = sampler.init().params
    for k, p in model.named_parameters():
        assert (p - moved[k][0]).abs().max() > 1e-3, f"{k} did not move"
        torch.testing.assert_close(p.detach(), state.params[k][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(optimizer.mean()[k], state.mean[k][0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("moves", "every"),
    [
        (dynamics.Underdamped(friction=0.2, integrator="baoab"), 1),
        (dynamics.Underdamped(friction=0.2, integrator="euler", correct_heat=True), 1),
        (dynamics.NoseHoover(friction=0.2), 1),
        (dynamics.Microcanonical(friction=0.2), 1),
        (dynamics.Overdamped(), 3),
    ],
)
def test_any_dynamics(moves: dynamics.Integrator, every: int) -> None:
    """And a metric that looks at every third batch alone: nothing is recorded of the others."""
    model = mixed().double()
    metric = preconditioners.QuasiDiagonalFisher(damping=1e-2, every=every)
    size = 6 if isinstance(moves, dynamics.NoseHoover) else 50
    options = {"preconditioner": metric, "num_data": size, "seed": 5, "dynamics": moves}
    sampler = Langevin(model, likelihoods.Categorical(), chains=1, step_size=1e-3, **options)
    optimizer = NaturalLangevin(model, likelihoods.Categorical(), lr=1e-3, **options)
    state = sampler.init()
    for step, (x, y) in enumerate(batches(8)):
        if step == 4:  # from what a checkpoint holds
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer.remove_hooks()
            optimizer = NaturalLangevin(model, likelihoods.Categorical(), lr=1e-3, **options)
            optimizer.load_state_dict(saved)
        state, _ = sampler.step(state, (x, y))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        assert bool(optimizer._fisher.due()) == (step % every == 0)
        loss.backward()
        optimizer.step()
    for k, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), state.params[k][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(optimizer.mean()[k], state.mean[k][0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("moves", "error"),
    [
        (dynamics.Underdamped(integrator="ubu"), "needs gradients between two steps"),
        (dynamics.Adjusted(), "evaluates losses by itself"),
        ("baoab", "dynamics must be one of natural_langevin.dynamics"),
    ],
)
def test_dynamics_that_a_loop_cannot_feed(moves: object, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        NaturalLangevin(linear(), likelihoods.Categorical(), num_data=9, dynamics=moves)


def test_a_step_is_few_operations_however_many_tensors_there_are() -> None:
    """By kernels, beside the statistics, which are a layer's own."""

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.calls += not any(
                r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns
            )
            return func(*args, **(kwargs or {}))

    found = {}
    for depth in (2, 12):
        layers = [m for _ in range(depth) for m in (nn.Linear(4, 4), nn.Tanh())]
        model = nn.Sequential(*layers, nn.Linear(4, 3))
        optimizer = NaturalLangevin(
            model, likelihoods.Categorical(), num_data=50, preconditioner=preconditioners.RMSProp()
        )
        for x, y in batches(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x.float()), y).backward()
            with Count() as count:
                optimizer.step()
        found[depth] = count.calls
    assert found[12] < 150
    assert found[12] - found[2] == 20  # so many gradients more are looked at


def test_a_network_whose_sampled_layers_have_no_bias() -> None:
    """The metric then has no bias rows at all."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)).double()
    model[0].requires_grad_(False)
    head = NaturalLangevin(model, likelihoods.Categorical(), num_data=50, lr=1e-4)
    sampler = Langevin(model, likelihoods.Categorical(), chains=1, step_size=1e-4, num_data=50)
    state = sampler.init()
    for x, y in batches(5):
        state, _ = sampler.step(state, (x, y))
        head.zero_grad()
        F.cross_entropy(model(x), y).backward()
        head.step()
    torch.testing.assert_close(model[2].weight.detach(), state.params["2.weight"][0])
    assert not torch.equal(model[2].weight.detach(), sampler.init().params["2.weight"][0])


def test_another_chain_of_the_sampler() -> None:
    model = linear().double()
    sampler = Langevin(model, likelihoods.Categorical(), chains=3, step_size=1e-4, num_data=50)
    optimizer = NaturalLangevin(model, likelihoods.Categorical(), num_data=50, lr=1e-4, chain=2)
    state = sampler.init()
    for x, y in batches(5):
        state, _ = sampler.step(state, (x, y))
        optimizer.zero_grad()
        optimizer.loss(model(x), y).backward()
        optimizer.step()
    for k, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), state.params[k][2], rtol=1e-12, atol=1e-12)


def test_a_regression_that_learns_its_noise() -> None:
    """``optimizer.loss`` moves sigma along as the sampler does."""
    model = linear().double()
    likelihood = likelihoods.Gaussian("rmse")
    sampler = Langevin(model, likelihood, chains=1, step_size=1e-4, num_data=50)
    optimizer = NaturalLangevin(model, likelihood, num_data=50, lr=1e-4)
    collector = optimizer.collector()
    state = sampler.init()
    for x, _ in batches(20):
        y = x[:, :3] * 2
        state, _ = sampler.step(state, (x, y))
        optimizer.zero_grad()
        optimizer.loss(model(x), y).backward()
        with torch.no_grad():
            optimizer.loss(model(x), y)  # looking does not count
        optimizer.step()
    for k, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), state.params[k][0], rtol=1e-12, atol=1e-12)
    sigma = collector.posterior().sigma
    assert sigma is not None
    torch.testing.assert_close(sigma, state.likelihood["variance"].sqrt())


def test_replicas_do_not_learn_a_noise_each() -> None:
    class Two:
        rank, size = staticmethod(lambda: 0), staticmethod(lambda: 2)

    model, x = linear(), torch.randn(6, 4)
    optimizer = NaturalLangevin(model, likelihoods.Gaussian("rmse"), num_data=50)
    outputs = model(x)
    optimizer._fisher.group = Two()  # as inside DistributedDataParallel
    with pytest.raises(ValueError, match="every rank sees a part only: give a number for sigma"):
        optimizer.loss(outputs, x[:, :3])


def test_without_noise_it_is_plain_gradient_descent() -> None:
    model = linear().double()
    other = copy.deepcopy(model)
    ours = NaturalLangevin(
        model, likelihoods.Categorical(), num_data=50, lr=0.1, temperature=0.0,
        prior=priors.Flat(), preconditioner=preconditioners.Euclidean(),
    )  # fmt: skip
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    for x, y in batches(10):
        for network, optimizer in ((model, ours), (other, sgd)):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("family", [priors.Gaussian(0.3), priors.Laplace(0.4)], ids=repr)
def test_means_of_every_weight(family: priors.Prior) -> None:
    model = linear().double()
    torch.manual_seed(1)
    prior = {
        k: dataclasses.replace(family, mean=torch.randn(1, *p.shape).double())  # type: ignore[type-var]
        for k, p in model.named_parameters()
    }
    options = {"prior": prior, "num_data": 50, "seed": 5}
    options["preconditioner"] = preconditioners.QuasiDiagonalFisher(damping=1e-2)
    sampler = Langevin(model, likelihoods.Categorical(), chains=1, step_size=1e-3, **options)
    optimizer = NaturalLangevin(model, likelihoods.Categorical(), lr=1e-3, **options)
    state = sampler.init()
    for x, y in batches(4):
        state, _ = sampler.step(state, (x, y))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(state.params[name][0], p.detach(), rtol=1e-9, atol=1e-9)
