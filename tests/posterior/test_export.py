"""Exported files, read back by torch alone and by ONNX Runtime, predict what ``predict`` does."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners
from natural_langevin.posterior import ensemble, sharpening
from natural_langevin.posterior.export import WAYS, Served, Way

Data = tuple[Tensor, Tensor]
Reader = Callable[[Tensor], Sequence[Tensor]]


class Small(nn.Module):
    """A convolution, a frozen layer and a buffer, beside what is sampled."""

    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 2, 2)
        self.norm = nn.BatchNorm1d(2) if norm else nn.Conv1d(2, 2, 1)
        self.norm.requires_grad_(False)
        self.head = nn.Linear(4, 3)
        self.register_buffer("shift", torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.convolution(x[:, None]).relu()).flatten(1) + self.shift)


def sample(likelihood: likelihoods.Likelihood, data: Data, *, norm: bool = False) -> Posterior:
    torch.manual_seed(0)
    sampler = Langevin(
        Small(norm=norm).eval(), likelihood, step_size=0.05, chains=2,
        preconditioner=preconditioners.Euclidean(),
    )  # fmt: skip
    return sampler.sample(data, 30, batch_size=8, burn_in=24, thin=2, progress=False)


def torch_reader(path: Path) -> Reader:
    return torch.export.load(path).module()


def onnx_reader(path: Path) -> Reader:
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    session = runtime.InferenceSession(path)
    assert [o.name for o in session.get_outputs()] == ["mean", "total", "epistemic"]
    return lambda x: [torch.from_numpy(t) for t in session.run(None, {"x": x.numpy()})]


def assert_predicts(read: Reader, posterior: Posterior, x: Tensor, **options) -> None:
    expected = posterior.predict(x, **options)
    found = read(x)
    names = [n for n in ("mean", "total", "epistemic") if getattr(expected, n) is not None]
    assert len(found) == len(names)
    for value, name in zip(found, names, strict=True):
        torch.testing.assert_close(value, getattr(expected, name), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("format", "reader", "estimate"),
    [
        ("torch", torch_reader, "ensemble"),
        pytest.param("torch", torch_reader, "mean", marks=pytest.mark.thorough),
        # ONNX of this network and of these classes, one by one: the two tests that follow.
        pytest.param("onnx", onnx_reader, "ensemble", marks=pytest.mark.thorough),
        pytest.param("onnx", onnx_reader, "mean", marks=pytest.mark.thorough),
    ],
)
def test_files_predict_like_the_posterior(
    format: str, reader: Callable[[Path], Reader], estimate: str, tmp_path: Path, classes: Data
) -> None:
    """Made from one example, used with other numbers of inputs."""
    x, _ = classes
    posterior = sample(likelihoods.Categorical(), classes)
    assert (posterior.predict(x).epistemic > 1e-6).all()
    path = tmp_path / ("file.pt2" if format == "torch" else "file.onnx")
    posterior.export(path, x[:1], format=format, estimate=estimate)
    read = reader(path)
    for inputs in (x, x[:1]):
        assert_predicts(read, posterior, inputs, estimate=estimate)


@pytest.mark.parametrize(
    "steps", [4, pytest.param(sharpening.SERVED_STEPS, marks=pytest.mark.thorough)]
)
def test_a_calibrated_classifier_as_onnx(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default predictions are sharpened; also where its networks are sure, and agree. These need
    fewer steps than a file has, each of which is traced, checked and optimised."""
    monkeypatch.setattr(sharpening, "SERVED_STEPS", steps)
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    sampler = Langevin(nn.Linear(3, 2), likelihoods.Categorical(), step_size=0.05, chains=2)
    posterior = sampler.sample((x, (x[:, 0] > 0).long()), 30, burn_in=24, thin=2, progress=False)
    for state in posterior.samples.values():
        state.mul_(8.0)
    posterior.export(tmp_path / "file.onnx", x[:2], format="onnx", sharpness=0.8)
    assert_predicts(onnx_reader(tmp_path / "file.onnx"), posterior, x, sharpness=0.8)


def test_a_regression_that_learned_its_noise_as_onnx(tmp_path: Path) -> None:
    """For any number of inputs, and not only the example's."""
    posterior, x = of_numbers(likelihoods.Gaussian(sigma="rmse"))
    posterior.export(tmp_path / "file.onnx", x[:2], format="onnx")
    assert_predicts(onnx_reader(tmp_path / "file.onnx"), posterior, x)


def test_layers_that_cannot_stand_side_by_side(tmp_path: Path, classes: Data) -> None:
    """BatchNorm under vmap fixes the number of inputs: its networks follow one another."""
    posterior = sample(likelihoods.Categorical(), classes, norm=True)
    posterior.export(tmp_path / "file.pt2", classes[0], estimate="mean")
    assert_predicts(torch_reader(tmp_path / "file.pt2"), posterior, classes[0][:7], estimate="mean")


@functools.cache
def of_numbers(likelihood: likelihoods.Likelihood) -> tuple[Posterior, Tensor]:
    """A posterior, the same for every way of serving it, and its inputs."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(2))
    y = x.flip(1) > 0 if likelihood.discrete else x.flip(1)
    return sample(likelihood, (x, y.float())), x


OTHERS = (
    likelihoods.Gaussian(sigma=0.3),
    likelihoods.Gaussian(sigma="rmse"),
    likelihoods.StudentT(df=5.0),
    likelihoods.Bernoulli(),
    likelihoods.LogLoss(lambda outputs, y: (outputs - y).square().sum(1)),
)


@pytest.mark.parametrize(
    ("likelihood", "way"),
    [  # networks are evaluated one way or another before a likelihood sees them: they take turns
        pytest.param(likelihood, way, marks=() if k % len(WAYS) == m else pytest.mark.thorough)
        for (k, likelihood), (m, way) in itertools.product(enumerate(OTHERS), enumerate(WAYS))
    ],
)
def test_what_is_exported(likelihood: likelihoods.Likelihood, way: Way) -> None:
    """The module itself, for the other likelihoods."""
    posterior, x = of_numbers(likelihood)
    networks = ensemble.stacked(posterior, "ensemble")
    state = ensemble.learned_by(posterior, posterior.healthy, posterior.draws)
    served = Served(posterior.template, likelihood, networks, state)
    served.way = way
    assert_predicts(served, posterior, x)


def test_bad_arguments(tmp_path: Path, classes: Data) -> None:
    posterior = sample(likelihoods.Categorical(), classes)
    with pytest.raises(ValueError, match=r'"torch" or "onnx", got \'tflite\''):
        posterior.export(tmp_path / "file", classes[0], format="tflite")
    with pytest.raises(ValueError, match="at least one input"):
        posterior.export(tmp_path / "file.pt2", classes[0][:0])
    with pytest.raises(ValueError, match=r"only files named \.pt2, got .*file\.pth"):
        posterior.export(tmp_path / "file.pth", classes[0])
    with pytest.raises(ValueError, match='"ensemble", "mean" or "last"'):
        posterior.export(tmp_path / "file", classes[0], estimate="best")
    assert list(tmp_path.iterdir()) == []
    assert logging.getLogger("torch.onnx").level != logging.ERROR
