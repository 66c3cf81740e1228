"""Bad input fails before the first step, with the value received and a remedy."""

from __future__ import annotations

import math
import random as python_random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import Langevin, likelihoods, preconditioners, priors, schedules
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.optim import NaturalLangevin
from oracle import build

X, Y = torch.linspace(-1, 1, 120).reshape(40, 3), torch.arange(40) % 3
TARGETS = X.flip(1)


@pytest.fixture(autouse=True)
def no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*_: object, **__: object) -> None:
        pytest.fail("a step was taken")

    monkeypatch.setattr(LangevinDynamics, "step", step)


def construct(model: nn.Module | None = None, **options) -> Langevin:
    settings = {"likelihood": likelihoods.Categorical(), "chains": 2} | options
    return Langevin(model or build("bias"), **settings)


def sample(
    data, *, steps: int = 10, batch_size: int = 8, burn_in: int = 0, thin: int = 1, **options
) -> None:
    construct(**options).sample(
        data, steps, batch_size=batch_size, burn_in=burn_in, thin=thin, progress=False
    )


def with_value(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[10] = value  # sample 3 of rows of three, sample 10 of a vector
    return tensor


def frozen() -> nn.Module:
    return build("bias").requires_grad_(False)


class Random(nn.Module):
    """Outputs multiplied by what ``noise`` draws."""

    def __init__(self, noise: Callable[[Tensor], Tensor | float]) -> None:
        super().__init__()
        self.layer, self.noise = nn.Linear(3, 3), noise

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.noise(x)


RANDOM = ["forward pass is random", "deterministic", "model.eval()", "F.dropout(training=True)"]


def broken() -> nn.Module:
    model = build("bias")
    model[0].weight.data[0, 0] = math.nan
    return model


def missing_device() -> str:
    """A GPU beyond the last one, or of a kind that this torch was not made for."""
    return f"cuda:{torch.cuda.device_count()}"


GAUSSIAN = {"likelihood": likelihoods.Gaussian(sigma=1.0)}

DATA: dict[str, tuple[Callable[[], object], type[Exception], list[str]]] = {
    "NaN in x": (
        lambda: sample((with_value(X, math.nan), Y)),
        ValueError, ["x holds NaN", "1 of 40", "[3]", "remove or impute"]),
    "infinity in x": (
        lambda: sample((with_value(X, math.inf), Y)),
        ValueError, ["x holds NaN or infinite", "[3]", "remove or impute"]),
    "NaN in y": (
        lambda: sample((X, with_value(TARGETS, math.nan)), **GAUSSIAN),
        ValueError, ["y holds NaN", "[3]", "remove or impute"]),
    "NaN in a loader": (
        lambda: sample(DataLoader(TensorDataset(with_value(X, math.nan), Y), batch_size=8)),
        ValueError, ["x holds NaN", "remove or impute"]),
    "label too large": (
        lambda: sample((X, with_value(Y, 3))), ValueError, ["0 .. 2", "3 outputs", "0 to 3"]),
    "label negative": (
        lambda: sample((X, with_value(Y, -1))), ValueError, ["0 .. 2", "-1 to 2"]),
    "float labels": (
        lambda: sample((X, Y.float())), TypeError, ["torch.float32", "y.long()"]),
    "integer targets": (
        lambda: sample((X, Y), model=nn.Linear(3, 1), **GAUSSIAN),
        TypeError, ["torch.int64", "y.float()"]),
    "integer inputs": (
        lambda: sample((X.long(), Y)), ValueError, ["cannot take x", "(8, 3)", "Long"]),
    "integer inputs' remedy": (
        lambda: sample((X.long(), Y)), ValueError, ["x is torch.int64", "x.float()"]),
    "one number per sample": (
        lambda: sample((X[:, 0], Y)), ValueError, ["(8,)", "x[:, None]", "x[None]"]),
    "lists": (
        lambda: sample((X.tolist(), Y.tolist())),
        TypeError, ["got ['list']", "torch.as_tensor"]),
    "a column of labels": (
        lambda: sample((X, Y[:, None])), ValueError, ["(40, 1)", "y.squeeze(-1)"]),
    "one-hot labels": (
        lambda: sample((X, F.one_hot(Y))), ValueError, ["(40, 3)", "y.argmax(-1)"]),
    "x and y apart": (
        lambda: construct().sample(X, Y, steps=9), TypeError, ["one argument", "sample((x, y), "]),
    "wrong width": (
        lambda: sample((X[:, :2], Y)), ValueError, ["cannot take x", "(8, 2)"]),
    "target width": (
        lambda: sample((X, TARGETS[:, :2]), **GAUSSIAN),
        ValueError, ["2 values", "(40, 2)", "must agree"]),
    "sparse": (lambda: sample((X.to_sparse(), Y)), TypeError, ["sparse", "x.to_dense()"]),
    "sparse labels": (lambda: sample((X, Y.to_sparse())), TypeError, ["sparse", "to_dense()"]),
    "nested": (
        lambda: sample((torch.nested.nested_tensor(list(X), layout=torch.jagged), Y)),
        TypeError, ["nested", "to_padded_tensor"]),
    "no values": (lambda: sample((X.to("meta"), Y)), TypeError, ["meta device", "no values"]),
    "lengths": (lambda: sample((X, Y[:39])), ValueError, ["same length", "40 and 39"]),
    "empty": (lambda: sample((X[:0], Y[:0])), ValueError, ["empty", "at least one sample"]),
    "empty loader": (
        lambda: sample(DataLoader(TensorDataset(X[:0], Y[:0]))),
        ValueError, ["no batch", "empty?"]),
    "a loader that drops its only batch": (
        lambda: construct().sample(
            DataLoader(TensorDataset(X, Y), batch_size=64, drop_last=True)),
        ValueError, ["no batch", "drop_last"]),
    "weights behind the targets": (
        lambda: sample((X, Y, torch.ones(40))),
        ValueError, ["must be Tensor, not tuple", "give the pair (x, y)"]),
    "a dictionary for a network of one argument": (
        lambda: sample({"x": X, "y": Y}),
        ValueError, ["must be Tensor, not dict", "give the pair (x, y)"]),
    "batch too large": (
        lambda: sample((X, Y), batch_size=41), ValueError, ["batch_size", "1 and", "40", "41"]),
    "batch of none": (
        lambda: sample((X, Y), batch_size=0), ValueError, ["batch_size", "1 and", "got 0"]),
    "arrays of text": (
        lambda: sample((X.numpy().astype(str), Y.numpy())),
        TypeError, ["ndarray", "encode its classes"]),
    "a list of words": (
        lambda: sample((X, ["red", "blue"] * 20)),
        TypeError, ["list of str", "encode its classes", "numpy.unique(y, return_inverse=True)"]),
    "classes of pixels on torch's axis": (
        lambda: sample((torch.rand(40, 1, 5, 6), torch.zeros(40, 5, 6).long()),
                       model=nn.Conv2d(1, 3, 1)),
        ValueError, ["(40, 5, 6)", "(batch, 3, 5, 6)", "last axis", "outputs.movedim(1, -1)"]),
    "dictionary": (lambda: sample({"x": X}), TypeError, ["dict", "(x, y)"]),
    "functional dropout": (
        lambda: sample((X, Y), model=Random(lambda x: F.dropout(x, training=True))),
        ValueError, RANDOM),
    "random numbers that hardly ever matter": (
        lambda: sample((X, Y), model=Random(lambda x: (torch.rand(()) >= 0).float())),
        ValueError, RANDOM),
    "randomness that is not torch's": (
        lambda: sample((X, Y), model=Random(lambda x: python_random.random())),
        ValueError, RANDOM),
    "averaged loss": (
        lambda: sample((X, Y), likelihood=likelihoods.LogLoss(lambda o, y: o.mean())),
        ValueError, ["LogLoss", "one loss per sample, shape (4,), got ()", "do not average"]),
    "a number for a loss": (
        lambda: sample((X, Y), likelihood=likelihoods.LogLoss(lambda o, y: 1.0), batch_size=2),
        ValueError, ["one loss per sample, shape (2,), got 1.0"]),
    "no sample function": (
        lambda: sample(
            (X, Y), likelihood=likelihoods.LogLoss(lambda o, y: o.sum(1)),
            preconditioner=preconditioners.DiagonalFisher(targets="model")),
        ValueError, ['targets="model"', "sample=...", 'targets="data"']),
}  # fmt: skip

RUN: dict[str, tuple[Callable[[], object], type[Exception], list[str]]] = {
    "steps = burn_in": (
        lambda: sample((X, Y), steps=5, burn_in=5), ValueError, ["steps=5", "burn_in=5", "larger"]),
    "steps < burn_in": (
        lambda: sample((X, Y), steps=5, burn_in=500), ValueError, ["steps=5", "burn_in=500"]),
    "thin too large": (
        lambda: sample((X, Y), steps=9, burn_in=5, thin=5), ValueError, ["thin=5", "4 steps"]),
    "thin 0": (lambda: sample((X, Y), thin=0), ValueError, ["thin >= 1", "got 0 and 0"]),
    "burn_in -1": (lambda: sample((X, Y), burn_in=-1), ValueError, ["burn_in must be >= 0", "-1"]),
    "a schedule that ends in words": (
        lambda: sample((X, Y), step_size=lambda t: 0.1 if t < 7 else "small"),
        TypeError, ["step_size", "'small'", "step 7"]),
    "schedule that breaks later": (
        lambda: sample((X, Y), step_size=lambda t: 0.1 if t < 7 else math.nan),
        ValueError, ["step_size", "nan", "step 7"]),
}  # fmt: skip

CONSTRUCTION: dict[str, tuple[Callable[[], object], type[Exception], list[str]]] = {
    "negative step size": (
        lambda: construct(step_size=-0.1), ValueError, ["step_size", "-0.1", "at least 0"]),
    "NaN step size": (lambda: construct(step_size=math.nan), ValueError, ["step_size", "nan"]),
    "step sizes": (
        lambda: construct(step_size=torch.ones(3)), ValueError, ["step_size", "(2,)", "(3,)"]),
    "temperatures": (
        lambda: construct(temperature=torch.ones(3)), ValueError, ["temperature", "(2,)", "(3,)"]),
    "a list of temperatures": (
        lambda: construct(temperature=[1.0, 2.0]),
        TypeError, ["temperature must be a number or a tensor", "torch.tensor([1.0, 2.0])"]),
    "negative temperature": (
        lambda: construct(temperature=-1.0), ValueError, ["temperature", "-1.0", "at least 0"]),
    "prior variances": (
        lambda: construct(prior=priors.Gaussian(torch.ones(3))),
        ValueError, ["variance", "3 values for 2 chains", "one value per chain"]),
    "pattern without match": (
        lambda: construct(prior={"*.gamma": priors.Flat(), "*": priors.Flat()}),
        ValueError, ["*.gamma", "matches no parameter", "0.weight"]),
    "parameter without pattern": (
        lambda: construct(prior={"*.bias": priors.Flat()}),
        ValueError, ["0.weight", 'last pattern "*"']),
    "nothing to train": (
        lambda: construct(frozen()),
        ValueError, ["no trainable parameters", "requires_grad_(True)"]),
    "broken parameters": (
        lambda: construct(broken()), ValueError, ["0.weight", "NaN", "re-initialise"]),
    "mixed dtypes": (
        lambda: construct(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double())),
        TypeError, ["float32", "float64", "one real floating dtype"]),
    "full Fisher too large": (
        lambda: construct(nn.Linear(100, 30), preconditioner=preconditioners.FullFisher()),
        ValueError, ["2048", "3030", "QuasiDiagonalFisher()", "max_parameters=3030"]),
    "a device that is called otherwise": (
        lambda: construct(device="gpu"), ValueError, ["device", "'gpu'", 'is "cuda"']),
    "a device that is not here": (
        lambda: construct(device=missing_device()),
        ValueError, ["device", "is not available here", 'device="cpu"']),
    "compile": (
        lambda: construct(compile="yes"),
        ValueError, ["compile", "'yes'", 'True, False or "auto"']),
    "init": (
        lambda: construct(init="zeros"), ValueError, ["init", "'zeros'", '"fan_in", "prior"']),
    "targets": (
        lambda: preconditioners.QuasiDiagonalFisher(targets="labels"),
        ValueError, ["targets", "'labels'", '"data" or "model"']),
    "damping": (
        lambda: preconditioners.FullFisher(damping=-1.0),
        ValueError, ["damping", "-1.0", "least 0"]),
    "decay": (
        lambda: construct(preconditioner=preconditioners.RMSProp(decay=1.5)),
        ValueError, ["decay", "1.5", "between 0 and 1"]),
    "mean rate": (
        lambda: construct(mean_rate=2.0), ValueError, ["mean_rate", "2.0", "between 0 and 1"]),
    "no chains": (lambda: construct(chains=0), ValueError, ["chains", "positive integer", "got 0"]),
    "too many chains": (
        lambda: construct(chains=10**9), ValueError, ["chains", "1,000,000", "got 1000000000"]),
    "too many steps": (lambda: sample((X, Y), steps=10**30), ValueError, ["steps", "below 2^63"]),
    "for ever": (
        lambda: construct(step_size=1e-3).sample((X, Y), seconds=math.inf, progress=False),
        ValueError, ["seconds", "finite", "got inf"]),
    "seed": (lambda: construct(seed=-1), ValueError, ["seed", "-1", "0 to 2^63 - 1"]),
    "number of data": (
        lambda: construct(num_data=0), ValueError, ["num_data", "positive", "got 0"]),
    "a loss function": (
        lambda: construct(likelihood=F.cross_entropy),
        TypeError, ["likelihood", "cross_entropy", "likelihoods.LogLoss(fn)"]),
    "a class for a likelihood": (
        lambda: construct(likelihood=likelihoods.Categorical),
        TypeError, ["likelihood", "Categorical", "an instance of it, Categorical(...)"]),
    "a function for a model": (
        lambda: construct(torch.tanh), TypeError, ["torch.nn.Module", "builtin_function"]),
    "parameters on the meta device": (
        lambda: construct(nn.Linear(3, 3, device="meta")),
        ValueError, ["'weight'", "meta device", 'model.to_empty(device="cpu")']),
    "a wrapper for several GPUs": (
        lambda: construct(nn.DataParallel(build("bias"))),
        TypeError, ["DataParallel", "model.module"]),
    "a word for a likelihood": (
        lambda: construct(likelihood="categorical"),
        TypeError, ["'categorical'", "likelihoods.Categorical()"]),
    "no noise": (lambda: likelihoods.Gaussian(), TypeError, ["sigma", "0.3", '"rmse"', "learn"]),
    "a layer's name for a trained network": (
        lambda: Langevin.from_trained(build("bias"), likelihoods.Categorical(), parameters="0"),
        ValueError, ["'0'", "matches none", "'0.*'"]),
    "no names for a trained network": (
        lambda: Langevin.from_trained(build("bias"), likelihoods.Categorical(), parameters=None),
        TypeError, ['"last"', '"all"', "None"]),
    "parameters for a model": (
        lambda: NaturalLangevin(
            build("bias").parameters(), likelihoods.Categorical(), num_data=40, lr=0.1),
        TypeError, ["generator", "the model itself, not model.parameters()"]),
    "a class for a model": (
        lambda: construct(nn.Identity), TypeError, ["torch.nn.Module", "instance"]),
    "a word for a preconditioner": (
        lambda: construct(preconditioner="diagonal"),
        TypeError, ["preconditioner", "'diagonal'", "preconditioners.DiagonalFisher()"]),
    "nothing for a preconditioner": (
        lambda: construct(preconditioner=""), TypeError, ["preconditioner", "got ''"]),
    "a class for a preconditioner": (
        lambda: construct(preconditioner=preconditioners.RMSProp),
        TypeError, ["preconditioner", "RMSProp", "an instance of it, RMSProp(...)"]),
    "a number for a prior": (
        lambda: construct(prior=0.1), TypeError, ["prior", "got 0.1", "priors.Gaussian(variance="]),
    "a class for a prior": (
        lambda: construct(prior=priors.Flat),
        TypeError, ["prior", "Flat", "an instance of it, Flat(...)"]),
    "a word in a dict of priors": (
        lambda: construct(prior={"*": "flat"}),
        TypeError, ["prior for '*'", "'flat'", "priors.Gaussian(variance="]),
    "a word for a step size": (
        lambda: construct(step_size="0.1"), TypeError, ["step_size", "'0.1'", "float(...)"]),
    "a bool for a step size": (
        lambda: construct(step_size=True), TypeError, ["step_size", "True", "float(...)"]),
    "a word for a temperature": (
        lambda: construct(temperature="cold"), TypeError, ["temperature", "'cold'", "float(...)"]),
    "a schedule for a temperature": (
        lambda: construct(temperature=schedules.halving(1.0, every=10)),
        TypeError, ["temperature", "halving", "cannot change along the run"]),
    "a word for the number of data": (
        lambda: construct(num_data="40"), TypeError, ["num_data", "'40'", "len(dataset)"]),
}  # fmt: skip

CASES = DATA | RUN | CONSTRUCTION


@pytest.mark.parametrize("name", CASES)
def test_refused_before_the_first_step(name: str) -> None:
    action, error, words = CASES[name]
    with pytest.raises(error) as caught:
        action()
    for word in words:
        assert word in str(caught.value)


COUNTS = ["steps", "batch_size", "burn_in", "thin", "chains", "seed"]
NO_COUNTS = [(name, value) for name in COUNTS for value in ("10", 10.0, True)]


# None leaves a run's own counts open.
@pytest.mark.parametrize(("name", "value"), [*NO_COUNTS, ("seed", None)])
def test_counts_are_integers(name: str, value: object) -> None:
    with pytest.raises(TypeError) as caught:
        sample((X, Y), **{name: value})
    for word in (name, f"got {value!r}", "int(...)"):
        assert word in str(caught.value)


def test_the_guard_works() -> None:
    """Good input does reach the first step (else every case above would prove nothing)."""
    with pytest.raises(pytest.fail.Exception, match="a step was taken"):
        sample((X, Y))


def test_more_samples_than_memory_are_refused_before_the_first_step():
    sampler = Langevin(nn.Linear(100, 100), likelihoods.Gaussian(sigma=1.0), step_size=1e-4)
    x = torch.zeros(10, 100)
    with pytest.raises(ValueError, match="raise thin"):
        sampler.sample((x, x), steps=50_000_000, batch_size=5, progress=False)
