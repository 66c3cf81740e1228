"""Sharpened mixtures: the mean is m^beta, and is still the mean of the networks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical

from natural_langevin import Posterior, likelihoods
from natural_langevin._internal.checked_json import with_checksum
from natural_langevin._internal.tensorfile import StorageError
from natural_langevin.posterior import ensemble, monte_carlo
from natural_langevin.posterior.export import Served
from natural_langevin.posterior.sharpening import sharpened, sharper
from small_run import disagreeing

Data = tuple[Tensor, Tensor]


def logs(classes: int, spread: float, *, networks: int = 40, inputs: int = 7) -> Tensor:
    """Log-probabilities of networks that differ by ``spread`` nats, (network, input, class)."""
    generator = torch.Generator().manual_seed(classes)
    common = 2 * torch.randn(1, inputs, classes, generator=generator, dtype=torch.float64)
    own = spread * torch.randn(networks, inputs, classes, generator=generator, dtype=torch.float64)
    return (common + own).log_softmax(-1)


def by_iterative_scaling(log_p: Tensor, beta: float) -> Tensor:
    """The oracle: one input at a time, u <- u + ln q - ln mean p' until nothing changes."""
    found = []
    for one in log_p.double().unbind(1):
        target = one.exp().mean(0).log().mul(beta).softmax(-1)
        u = torch.zeros_like(target)
        for _ in range(20_000):
            shifted = (one + u).softmax(-1)
            change = target.log() - shifted.mean(0).log()
            u = u + change
            if change.abs().max() < 1e-11:
                break
        found.append((one + u).softmax(-1))
    return torch.stack(found, 1)


@pytest.mark.parametrize(("classes", "spread"), [(2, 1.0), (3, 2.0), (10, 0.5)])
@pytest.mark.parametrize("beta", [0.7, 1.5])
def test_networks_are_those_of_the_oracle(classes: int, spread: float, beta: float) -> None:
    log_p = logs(classes, spread, inputs=3)
    found = sharpened(log_p, Categorical, beta).value
    torch.testing.assert_close(found, by_iterative_scaling(log_p, beta), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("spread", [0.5, 4.0, 15.0])
@pytest.mark.parametrize("beta", [0.6, 2.0])
def test_mean_is_the_power(classes: int, spread: float, beta: float) -> None:
    log_p = logs(classes, spread, inputs=3)
    value, entropy, _ = sharpened(log_p, Categorical, beta)
    mean = log_p.exp().mean(0)
    power = mean**beta / (mean**beta).sum(-1, keepdim=True)
    torch.testing.assert_close(value.mean(0), power, rtol=0, atol=1e-9)
    torch.testing.assert_close(sharper(mean, beta).exp(), power)
    assert torch.equal(value.mean(0).argsort(-1)[:, -2:], mean.argsort(-1)[:, -2:])
    torch.testing.assert_close(value.sum(-1), torch.ones_like(value[..., 0]))
    assert ((power * power.log()).sum(-1) + entropy.mean(0) <= 1e-9).all()  # epistemic >= 0


def test_one_number_of_networks_that_agree() -> None:
    """Then every network is its own power."""
    log_p = logs(4, 0.0)
    torch.testing.assert_close(
        sharpened(log_p, Categorical, 1.7).value, (1.7 * log_p).softmax(-1), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("gap", [30.0, 200.0, math.inf])
def test_networks_that_are_sure(gap: float) -> None:
    """One-hot to rounding and at odds: moved where float64 can, otherwise left; never a NaN."""
    votes = torch.tensor([0] * 7 + [1] * 3)
    log_p = torch.where(nn.functional.one_hot(votes, 3).bool(), 0.0, -torch.tensor(gap).double())
    log_p = log_p[:, None] + (0.0 if math.isinf(gap) else logs(3, 1.0, networks=10, inputs=1))
    for dtype in (torch.float64, torch.float32):
        value, entropy, _ = sharpened(log_p.to(dtype), Categorical, 1.5)
        assert torch.isfinite(value).all()
        assert torch.isfinite(entropy).all()
        assert value.mean(0).argmax() == 0
    mean = log_p.log_softmax(-1).exp().mean(0)
    wanted = mean if math.isinf(gap) else sharper(mean, 1.5).exp()
    found = sharpened(log_p.log_softmax(-1), Categorical, 1.5).value.mean(0)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_binary_targets_are_two_classes() -> None:
    log_p = logs(2, 1.0).unflatten(1, (7, 1))  # (network, input, label, class)
    binary = sharpened(log_p, Bernoulli, 1.4)
    assert binary.value.shape == (40, 7, 1)
    torch.testing.assert_close(binary.value, sharpened(log_p, Categorical, 1.4).value[..., 1])


@pytest.fixture
def posterior(network: nn.Module, classes: Data) -> Posterior:
    return disagreeing(network, likelihoods.Categorical(), classes, steps=40, burn_in=8)


def test_one_is_the_plain_mixture(posterior: Posterior, classes: Data) -> None:
    """Bit for bit, by default and when asked for."""
    x, _ = classes
    assert posterior.sharpness == 1.0
    assert "sharpness" not in posterior.config
    plain = posterior.predict(x, quantiles=(0.1,))
    posterior.sharpness = 1.6
    for a, b in zip(plain, posterior.predict(x, quantiles=(0.1,), sharpness=1.0), strict=True):
        assert torch.equal(a, b)
    for estimate in ("mean", "last"):  # learned for the ensemble alone
        found = posterior.predict(x, estimate=estimate)
        assert torch.equal(found.mean, posterior.predict(x, estimate=estimate, sharpness=1.0).mean)
    assert not torch.equal(found.mean, posterior.predict(x, estimate="last", sharpness=1.6).mean)


@pytest.mark.parametrize(("batch_size", "sample_batch"), [(1000, 16), (7, 3)])
def test_identities(
    posterior: Posterior, classes: Data, batch_size: int, sample_batch: int
) -> None:
    x, _ = classes
    plain = posterior.predict(x)
    p = posterior.predict(
        x, sharpness=1.6, quantiles=(0.5,), batch_size=batch_size, sample_batch=sample_batch
    )
    torch.testing.assert_close(p.mean, p.samples.mean(0))
    power = (1.6 * plain.mean.double().log()).softmax(-1)
    torch.testing.assert_close(p.mean.double(), power, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(p.total, p.aleatoric + p.epistemic)
    torch.testing.assert_close(p.total, Categorical(probs=p.mean).entropy())
    torch.testing.assert_close(p.aleatoric, Categorical(probs=p.samples).entropy().mean(0))
    assert (p.epistemic > 0).all()
    assert torch.equal(p.mean.argmax(1), plain.mean.argmax(1))
    torch.testing.assert_close(p.quantiles[0], p.samples.sort(0).values[15:17].mean(0))
    lean = posterior.predict(x, sharpness=1.6, keep_samples=False)
    torch.testing.assert_close(lean.mean, p.mean)
    torch.testing.assert_close(lean.epistemic, p.epistemic, rtol=1e-4, atol=1e-6)


def test_error_is_that_of_the_power(posterior: Posterior, classes: Data) -> None:
    """By leaving blocks of draws, and chains, out one by one: both are jackknives of q itself, and
    that of chains counts where the two differ by more than chance."""
    x, y = classes
    p, plain = posterior.predict(x, sharpness=1.6), posterior.predict(x)
    blocks = monte_carlo.block_means(plain.samples.unflatten(0, (2, -1)))

    def jackknife(score: Callable[[Tensor], Tensor]) -> Tensor:
        found = []
        for parts in (blocks.flatten(0, 1), blocks.mean(1)):
            rest = (parts.sum(0) - parts) / (len(parts) - 1)
            values = score((1.6 * rest.log()).log_softmax(-1))
            found.append(values.var(0) * (len(parts) - 1) ** 2 / len(parts))
        within, between = found
        return torch.where(between > 3.84 * within, between, within).sqrt()  # chi-squared, 5 %

    torch.testing.assert_close(p.error.double(), jackknife(torch.exp), rtol=0.2, atol=1e-4)
    scores = posterior.evaluate(x, y, sharpness=1.6)
    of_labels = jackknife(lambda log_q: log_q[:, torch.arange(len(y)), y].mean(1))
    assert scores.nll_error == pytest.approx(float(of_labels), rel=0.2)


def test_whatever_predicts_agrees(posterior: Posterior, classes: Data, tmp_path: Path) -> None:
    x, y = classes
    posterior.sharpness = 1.6
    p = posterior.predict(x)
    torch.testing.assert_close(posterior.predict_dist(x).probs.float(), p.mean)
    labels = p.mean.gather(1, y[:, None])
    assert posterior.evaluate(x, y).nll == pytest.approx(-float(labels.log().mean()), rel=1e-5)
    posterior.save(tmp_path / "saved")
    for memory_map in (False, True):
        loaded = Posterior.load(tmp_path / "saved", posterior.template, memory_map=memory_map)
        assert loaded.sharpness == 1.6
        torch.testing.assert_close(loaded.predict(x).mean, p.mean)
    student = posterior.distill(x, steps=100, batch_size=8, learning_rate=1e-2)
    near = [
        (student(x).softmax(-1) - posterior.predict(x, sharpness=s).mean).abs().mean()
        for s in (1.6, 1.0)
    ]
    assert near[0] < near[1]
    plain = posterior.distill(x, steps=100, batch_size=8, learning_rate=1e-2, sharpness=1.0)
    assert (plain(x).softmax(-1) - posterior.predict(x, sharpness=1.0).mean).abs().mean() < near[1]


@pytest.mark.parametrize("written", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_export(posterior: Posterior, classes: Data, tmp_path: Path, written: bool) -> None:
    """In a fixed number of operations: as the module that is exported, and from its file."""
    x, _ = classes
    posterior.sharpness = 1.6
    served: nn.Module = Served(
        posterior.template, posterior.likelihood, ensemble.stacked(posterior, "ensemble"), {}, 1.6
    )
    if written:
        posterior.export(tmp_path / "file.pt2", x)
        served = torch.export.load(tmp_path / "file.pt2").module()
    p, found = posterior.predict(x), served(x)
    for value, expected in zip(found, (p.mean, p.total, p.epistemic), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-5)


def test_networks_and_their_densities_are_plain(posterior: Posterior, classes: Data) -> None:
    x, y = classes
    before = posterior.log_likelihood(x, y), posterior.followed(x, None)
    posterior.sharpness = 1.6
    assert torch.equal(posterior.log_likelihood(x, y), before[0])
    assert torch.equal(posterior.followed(x, None), before[1])


@pytest.mark.parametrize("binary", [False, True])
def test_arviz(posterior: Posterior, network: nn.Module, classes: Data, binary: bool) -> None:
    pytest.importorskip("arviz")
    x, y = classes
    if binary:
        y = torch.nn.functional.one_hot(y, 3).float()
        posterior = disagreeing(network, likelihoods.Bernoulli(), (x, y), steps=40, burn_in=8)
    posterior.sharpness = 3.0
    found = posterior.to_arviz(x, data=(x, y))
    p = posterior.predict(x, sharpness=1.0)  # as log_likelihood has it: one law in one object
    shown = torch.from_numpy(found.posterior["prediction"].values).flatten(0, 1)
    torch.testing.assert_close(shown, p.samples)
    drawn = torch.from_numpy(found.posterior_predictive["y"].values).flatten(0, 1)
    counts = drawn if binary else torch.nn.functional.one_hot(drawn.long(), 3)
    # The mean over inputs of 32 draws each: independent given the networks.
    bound = 4 * math.sqrt(0.25 / (len(drawn) * len(x)))
    assert (counts.double().mean((0, 1)) - p.mean.mean(0)).abs().max() < bound


def test_refused(posterior: Posterior, network: nn.Module, classes: Data, tmp_path: Path) -> None:
    x, _ = classes
    for wrong in (0.0, -1.0, math.nan, math.inf, "sharp", True):
        with pytest.raises(ValueError, match="sharpness must be a positive number, got"):
            posterior.predict(x, sharpness=wrong)
        with pytest.raises(ValueError, match="sharpness must be a positive number, got"):
            posterior.sharpness = wrong
    numbers = disagreeing(
        network, likelihoods.Gaussian(sigma=0.3), (x, x.new_zeros(len(x), 3)), steps=40, burn_in=8
    )
    with pytest.raises(TypeError, match=r"sharpness=1.5 is for class probabilities, and Gaussian"):
        numbers.predict(x, sharpness=1.5)
    posterior.save(tmp_path)
    path = tmp_path / "posterior.json"
    fields = json.loads(path.read_text())
    fields["config"]["sharpness"] = "very"
    del fields["checksum"]
    path.write_text(json.dumps(with_checksum(fields)))
    with pytest.raises(StorageError, match="sharpness must be"):
        Posterior.load(tmp_path, posterior.template)
