"""Posterior: averages of probabilities, uncertainty in two parts, networks, noise level."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import small_run
from natural_langevin import Langevin, Posterior, likelihoods
from small_run import disagreeing

Data = tuple[Tensor, Tensor]


@pytest.fixture
def posterior(network: nn.Module, classes: Data) -> Posterior:
    return disagreeing(network, likelihoods.Categorical(), classes)


@pytest.fixture
def loop(posterior: Posterior, classes: Data) -> Tensor:
    """Every network's probabilities, one network at a time, in float64: (network, B, K)."""
    with torch.no_grad():
        return torch.stack(
            [
                posterior.network(c, d)(classes[0]).double().softmax(-1)
                for c in range(posterior.chains)
                for d in range(posterior.draws)
            ]
        )


def test_probabilities_are_averaged(posterior: Posterior, loop: Tensor, classes: Data) -> None:
    prediction = posterior.predict(classes[0])
    torch.testing.assert_close(prediction.mean.double(), loop.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(prediction.samples.double(), loop, rtol=1e-5, atol=1e-6)
    geometric = loop.log().mean(0).softmax(-1)
    assert (prediction.mean - geometric).abs().max() > 0.01


def test_uncertainty_of_classes(posterior: Posterior, loop: Tensor, classes: Data) -> None:
    """Entropy of the mean = mean entropy + mutual information."""

    def entropy(p: Tensor) -> Tensor:
        return -(p * p.log()).sum(-1)

    p = posterior.predict(classes[0])
    for measured, expected in (
        (p.total, entropy(loop.mean(0))),
        (p.aleatoric, entropy(loop).mean(0)),
        (p.epistemic, entropy(loop.mean(0)) - entropy(loop).mean(0)),
    ):
        torch.testing.assert_close(measured.double(), expected, rtol=1e-4, atol=1e-5)
    assert (p.epistemic > 1e-3).all()


@pytest.mark.parametrize(("batch_size", "sample_batch"), [(1000, 16), (7, 3), (1, 100)])
def test_chunks_do_not_matter(
    posterior: Posterior, classes: Data, batch_size: int, sample_batch: int
) -> None:
    whole = posterior.predict(classes[0])
    parts = posterior.predict(classes[0], batch_size=batch_size, sample_batch=sample_batch)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    lean = posterior.predict(classes[0], keep_samples=False)
    assert lean.samples is None
    torch.testing.assert_close(lean.mean, whole.mean)


def test_networks_taken_one_by_one_have_more_inputs_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 40 inputs in batches of 10, four networks at a time: all 40 of one after the other; as
    many as there is memory for; the averages are the same."""

    class Counted(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            inputs.append(len(x))
            return super().forward(x)

    inputs: list[int] = []
    torch.manual_seed(0)
    network = nn.Sequential(Counted(1, 3, 2), nn.Flatten(), nn.Linear(12, 2))
    x = torch.randn(40, 1, 3, 3)
    samples = {k: torch.randn(2, 3, *p.shape) for k, p in network.named_parameters()}
    posterior = disagreeing(network, likelihoods.Categorical(), (x, torch.arange(40) % 2))
    posterior = posterior.of_draws(samples)
    monkeypatch.setattr(posterior, "native", lambda *_: None)

    def predicted() -> tuple[Tensor, set[int], int]:
        inputs.clear()
        mean = posterior.predict(x, batch_size=10, sample_batch=4, keep_samples=False).mean
        largest = max(inputs)
        return mean, set(inputs), sum(n == largest for n in inputs)

    usual, sizes, _ = predicted()
    assert max(sizes) == 10
    monkeypatch.setattr("natural_langevin.statistics.in_turn.ONE_BY_ONE", 1)
    found, sizes, calls = predicted()
    assert max(sizes) == 40
    assert calls == 6
    torch.testing.assert_close(found, usual)
    monkeypatch.setattr("natural_langevin.posterior.ensemble.MOST_NUMBERS", 20 * 3 * 3 * 3)
    found, sizes, calls = predicted()
    assert max(sizes) == 20
    assert calls == 12
    torch.testing.assert_close(found, usual)


def test_estimates(posterior: Posterior, classes: Data) -> None:
    """ "mean" predicts with each chain's running mean, "last" with its last iterate."""
    x = classes[0]
    with torch.no_grad():
        means = torch.stack([posterior.mean_network(c)(x).softmax(-1) for c in range(2)])
        last = torch.stack([posterior.network(c, -1)(x).softmax(-1) for c in range(2)])
    torch.testing.assert_close(posterior.predict(x, estimate="mean").mean, means.mean(0))
    torch.testing.assert_close(posterior.predict(x, estimate="last").mean, last.mean(0))
    with pytest.raises(ValueError, match=r'"ensemble", "mean" or "last", got \'median\''):
        posterior.predict(x, estimate="median")


def test_networks_are_plain_modules(posterior: Posterior, network: nn.Module) -> None:
    """No hooks, no sharing: changing one changes nothing else."""
    one = posterior.network(1, 3)
    assert type(one) is type(network)
    assert not any(m._forward_hooks for m in one.modules())
    for k, p in one.named_parameters():
        assert torch.equal(p, posterior.samples[k][1, 3])
    with torch.no_grad():
        one[0].weight.zero_()
    assert posterior.samples["0.weight"][1, 3].any()
    assert posterior.network(1, 3)[0].weight.any()
    pooled = dict(posterior.mean_network().named_parameters())
    for k, m in posterior.mean.items():
        torch.testing.assert_close(pooled[k], m.mean(0))
        assert torch.equal(dict(posterior.mean_network(1).named_parameters())[k], m[1])


def test_frozen_parameters_and_buffers_come_along(classes: Data) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    model[1].running_mean.fill_(0.3)
    for p in model[1].parameters():
        p.requires_grad_(False)
    posterior = disagreeing(model, likelihoods.Categorical(), classes)
    one = posterior.network(0, 0)
    assert "1.weight" not in posterior.samples
    assert torch.equal(one[1].running_mean, model[1].running_mean)
    with torch.no_grad():
        expected = one(classes[0]).softmax(-1)
    torch.testing.assert_close(posterior.predict(classes[0]).samples[0], expected)


def test_bernoulli(network: nn.Module, regression: Data) -> None:
    x, y = regression[0], (regression[1] > 0).float()
    p = disagreeing(network, likelihoods.Bernoulli(), (x, y)).predict(x)
    assert p.mean.shape == p.total.shape == p.epistemic.shape == (40, 3)
    binary = torch.distributions.Bernoulli
    torch.testing.assert_close(p.total, binary(p.mean).entropy(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        p.aleatoric, binary(p.samples).entropy().mean(0), rtol=1e-4, atol=1e-5
    )


def test_regression(network: nn.Module, regression: Data) -> None:
    """Variances add up: sigma^2 from the data, the rest from the disagreement of networks."""
    posterior = disagreeing(network, likelihoods.Gaussian(sigma=0.3), regression)
    p = posterior.predict(regression[0])
    torch.testing.assert_close(p.mean, p.samples.mean(0))
    torch.testing.assert_close(p.epistemic, p.samples.var(0, correction=0), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(p.aleatoric, torch.full_like(p.mean, 0.09))
    torch.testing.assert_close(p.total, p.aleatoric + p.epistemic)
    torch.testing.assert_close(posterior.sigma.double(), torch.full((2,), 0.3).double())


def test_small_disagreement_around_a_large_mean(network: nn.Module, regression: Data) -> None:
    """Variance without cancellation: outputs near 1234 that differ by 0.01."""
    posterior = disagreeing(network, likelihoods.Gaussian(sigma=0.3), regression)
    offset = torch.linspace(-0.01, 0.01, posterior.draws)
    for k, s in posterior.samples.items():
        s.zero_()
        if k == "2.bias":
            s += 1234.567 + offset[None, :, None]
    p = posterior.predict(regression[0])
    expected = p.samples.double().var(0, correction=0)
    torch.testing.assert_close(p.epistemic.double(), expected, rtol=1e-2, atol=0)


def test_learned_noise_level_is_stated(network: nn.Module, regression: Data) -> None:
    """sigma="rmse": the running average, with rate 1/sqrt(t), of the minibatch mean squares."""
    sampler = Langevin(
        network, likelihoods.Gaussian(sigma="rmse"), step_size=1e-2, chains=2, num_data=40
    )
    posterior = sampler.sample(regression, 5, batch_size=8, progress=False)
    engine, state = sampler.prepare(regression, steps=5, batch_size=8)
    variance = torch.ones(2, dtype=torch.float64)
    for t in range(5):
        x, y = engine.stream.batch(t)
        rate = (t + 1) ** -0.5
        for c in range(2):
            own = {k: p[c] for k, p in state.params.items()}
            residual = torch.func.functional_call(network, own, (x[c],)).double() - y[c]
            variance[c] = (1 - rate) * variance[c] + rate * residual.square().mean()
        state, _ = sampler.step(state, (x, y), chain_axis=True)
    torch.testing.assert_close(posterior.sigma.double(), variance.sqrt(), rtol=1e-5, atol=0)
    aleatoric = posterior.predict(regression[0]).aleatoric
    torch.testing.assert_close(
        aleatoric.double(), variance.mean().expand_as(aleatoric), rtol=1e-5, atol=0
    )


class Heteroscedastic(nn.Module):
    """A mean per sample and one logarithm of a standard deviation for all, in a dict or tuple."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.mean, self.kind = nn.Linear(3, 3), kind
        self.register_buffer("log_sigma", torch.zeros(3))

    def forward(self, x: Tensor) -> object:
        parts = {"log_sigma": self.log_sigma, "mean": self.mean(x)}
        return parts if self.kind is dict else tuple(parts.values())


def gaussian(outputs: dict | tuple, y: Tensor) -> Tensor:
    log_sigma, mean = outputs.values() if isinstance(outputs, dict) else outputs
    return (((y - mean) / log_sigma.exp()).square() / 2 + log_sigma).sum(1)


@pytest.mark.parametrize("kind", [dict, tuple])
@pytest.mark.parametrize("batch_size", [2, 8])
def test_outputs_that_are_no_tensor(regression: Data, kind: type, batch_size: int) -> None:
    """They can be sampled with a LogLoss; predict says what to do instead."""
    model = Heteroscedastic(kind)
    options = {"step_size": 1e-3, "chains": 2}
    ours = Langevin(model, likelihoods.LogLoss(gaussian), **options)
    plain = Langevin(
        model.mean, likelihoods.LogLoss(lambda o, y: (y - o).square().sum(1) / 2), **options
    )
    a, b = (s.sample(regression, 3, batch_size=batch_size, progress=False) for s in (ours, plain))
    torch.testing.assert_close(a.samples["mean.weight"], b.samples["weight"])
    with pytest.raises(TypeError, match=rf"one tensor, got a {kind.__name__}: .*\.network\(chain"):
        a.predict(regression[0])


def test_classes_have_no_noise_level(posterior: Posterior) -> None:
    assert posterior.sigma is None


LEVELS = (0.05, 0.5, 0.95)


def test_quantiles_of_regression_include_the_noise(network: nn.Module, regression: Data) -> None:
    """Of the mixture over networks: its distribution function at the quantile is the level."""
    posterior = disagreeing(network, likelihoods.Gaussian(sigma=0.3), regression)
    batches = {"batch_size": 7, "sample_batch": 3}  # products of other shapes round otherwise
    p = posterior.predict(regression[0], quantiles=LEVELS, **batches)
    assert p.quantiles.shape == (3, 40, 3)
    normal = torch.distributions.Normal(p.samples.double(), 0.3)
    for level, row in zip(LEVELS, p.quantiles, strict=True):
        below = normal.cdf(row.double()).mean(0)
        torch.testing.assert_close(below, torch.full_like(below, level), rtol=0, atol=1e-5)
    wider = p.quantiles[2] - p.quantiles[0] > 2 * 1.645 * 0.3
    assert wider.float().mean() > 0.9
    one = posterior.predict(regression[0], quantiles=0.5, **batches).quantiles
    assert torch.equal(one, p.quantiles[1:2])


def test_quantiles_of_probabilities(posterior: Posterior, classes: Data) -> None:
    p = posterior.predict(classes[0], quantiles=LEVELS, keep_samples=False)
    assert p.samples is None
    whole = posterior.predict(classes[0])
    assert whole.quantiles is None
    levels = torch.tensor(LEVELS)
    torch.testing.assert_close(p.quantiles, torch.quantile(whole.samples, levels, dim=0))
    with pytest.raises(ValueError, match=r"strictly between 0 and 1, got 1\.0"):
        posterior.predict(classes[0], quantiles=[0.5, 1.0])


def test_networks_keep_their_own_noise_level(network: nn.Module, regression: Data) -> None:
    """sigma="rmse" differs between chains: the mixture has wide and narrow components."""
    posterior = disagreeing(network, likelihoods.Gaussian(sigma="rmse"), regression)
    posterior.learned = {"variance": torch.tensor([0.01, 4.0])}
    p = posterior.predict(regression[0], quantiles=[0.9])
    sigma = torch.tensor([0.1, 2.0]).double().repeat_interleave(posterior.draws)
    normal = torch.distributions.Normal(p.samples.double(), sigma[:, None, None])
    below = normal.cdf(p.quantiles[0].double()).mean(0)
    torch.testing.assert_close(below, torch.full_like(below, 0.9), rtol=0, atol=1e-4)
    torch.testing.assert_close(p.aleatoric, torch.full_like(p.mean, 2.005))


def test_batches_from_a_loader(posterior: Posterior, classes: Data) -> None:
    """A DataLoader of (x, y), one of x alone, and any iterable give what the tensor gives."""
    data = torch.utils.data.TensorDataset(*classes)
    loaders = [
        torch.utils.data.DataLoader(data, batch_size=7),
        torch.utils.data.DataLoader(classes[0], batch_size=7),
        (part for part in classes[0].split(9)),
    ]
    whole = posterior.predict(classes[0])
    for loader in loaders:
        p = posterior.predict(loader)
        torch.testing.assert_close(p.mean, whole.mean)
        torch.testing.assert_close(p.samples, whole.samples)
    with pytest.raises(ValueError, match="no batch"):
        posterior.predict([])
    with pytest.raises(TypeError, match=r"as_tensor"):
        posterior.predict([["a"]])


def test_evaluate_takes_its_data_as_sample_does(posterior: Posterior, classes: Data) -> None:
    x, y = classes
    expected = posterior.evaluate(x, y).nll
    dataset = TensorDataset(x, y)
    loader = DataLoader(dataset, batch_size=5)
    for data in ((x, y), {"input": x, "labels": y}, dataset, loader, (x.numpy(), y.numpy())):
        assert posterior.evaluate(data).nll == pytest.approx(expected, rel=1e-5)
    with pytest.raises(TypeError, match="data must be a pair"):
        posterior.evaluate("test.csv")


def test_a_posterior_says_what_it_is(posterior: Posterior) -> None:
    weights = sum(p.numel() for p in posterior.network(0, 0).parameters())
    assert repr(posterior) == (
        f"Posterior(2 chains x 5 draws of {weights} weights of a Sequential, Categorical)"
    )
    posterior.diverged[1] = 3
    assert repr(posterior).endswith("Categorical, 1 of the chains diverged)")


def test_inputs_that_do_not_fit_are_refused_with_a_remedy(
    posterior: Posterior, classes: Data
) -> None:
    x, y = classes
    for wrong, words in (
        (x[:, :-1], "cannot take x of shape"),
        (x[0], r"x\[None\] for one row"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            posterior.predict(wrong)
        assert len(str(caught.value)) < 400  # without torch's frames
    assert len(posterior.predict(x[:0]).mean) == 0
    assert torch.equal(posterior.predict(x.double()).mean, posterior.predict(x).mean)
    with pytest.raises(ValueError, match="same length"):
        posterior.evaluate(x, y[:-1])
    with pytest.raises(ValueError, match="nothing to score"):
        posterior.evaluate(x[:0], y[:0])
    with pytest.raises(ValueError, match="x holds NaN"):
        posterior.evaluate(x.where(x != x[3], torch.nan), y)


def test_targets_that_are_all_the_same_have_no_blind_guess(
    posterior: Posterior, classes: Data
) -> None:
    """One that knows them would never be wrong, and every prediction worse than it."""
    x, y = classes
    scores = posterior.evaluate(x[:1], y[:1])
    assert scores.blind_nll is None
    assert "blind guess" not in str(scores)
    assert posterior.evaluate(x, y).blind_nll is not None


def test_a_prediction_prints_what_is_asked_for_and_not_every_network() -> None:
    """Hundreds of networks' answers before a prompt hide the three that are wanted."""
    posterior = small_run.sample(100)
    p = posterior.predict(small_run.data()[0][:2], quantiles=(0.1, 0.9))
    assert p.samples is not None
    assert p.quantiles is not None
    shown = str(p)
    assert f"mean={p.mean}" in shown
    assert f"samples=tensor of shape {tuple(p.samples.shape)}" in shown
    assert f"quantiles={p.quantiles}" in shown


@pytest.mark.parametrize("chains", [[1.5], [0, 1.0], [True], ["0"], 1.5])
def test_fractions_are_no_chains(chains):
    posterior, (x, _) = small_run.sample(), small_run.data()
    with pytest.raises(TypeError, match=r"must be an integer|not iterable"):
        posterior.predict(x, chains=chains)
    with pytest.raises(TypeError, match="chain must be an integer"):
        posterior.network(1.5, 0)
    with pytest.raises(TypeError, match="draw must be an integer"):
        posterior.network(0, 1.5)
