"""Every statistic equals the float64 per-sample loop, however it is run, and is not zero."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import likelihoods, random
from natural_langevin._internal.gpu_kernels import transformations
from natural_langevin.statistics import Evaluation, Gradients, Network, Params, one_chain
from oracle import NETWORKS, Expected, build, chains_of, cross_entropy, per_sample_loop
from pairwise import covering

CASES = covering(list(NETWORKS), (1, 5, 32), (1, 3), (torch.float32, torch.float64))


def data(name: str, batch: int, chains: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A batch for every chain: (chain, B, ...)."""
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(chains, batch, *NETWORKS[name][1], generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.randint(0, 3, (chains, batch), generator=generator)


def evaluate(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    *,
    requests: tuple[str, ...],
    chain_axis: bool,
    backend: str | None = None,
    targets: str = "data",
    likelihood: likelihoods.Likelihood | None = None,
) -> Evaluation:
    likelihood = likelihood or likelihoods.Categorical()
    gradients = Gradients(Network(model), likelihood, requests=requests, targets=targets)
    gradients.prepare(params, x[0] if chain_axis else x)
    run = gradients
    if backend is not None:
        run = torch.compile(gradients, fullgraph=True, dynamic=False, backend=backend)
    chains = len(next(iter(params.values())))
    key = random.stream(random.origin(0, random.LABELS, torch.arange(chains)), 0)
    step = torch.zeros((), dtype=torch.int64)
    return run(params, {}, (x, y), chain_axis=chain_axis, key=key, step=step)


def assert_matches(
    evaluation: Evaluation, chain: int, expected: Expected, *, requests: tuple[str, ...]
) -> None:
    """Relative error in norm: 1e-5 in float32 (a few hundred roundings), 1e-12 in float64."""
    gradient, statistics = evaluation.gradient, evaluation.statistics
    pairs = {("gradient", k): (gradient[k], g) for k, g in expected.gradient.items()}
    assert gradient.keys() == expected.gradient.keys()
    if "second" in requests:
        assert statistics.second.keys() == expected.second.keys()
        pairs |= {("second", k): (statistics.second[k], s) for k, s in expected.second.items()}
        assert {b: set(row) for b, row in statistics.cross.items()} == {
            b: set(row) for b, row in expected.cross.items()
        }
        for b, row in expected.cross.items():
            pairs |= {("cross", b, w): (statistics.cross[b][w], c) for w, c in row.items()}
    if "samples" in requests:
        assert statistics.samples.keys() == expected.samples.keys()
        pairs |= {("samples", k): (statistics.samples[k], s) for k, s in expected.samples.items()}
    tolerance = 1e-5 if evaluation.loss.dtype == torch.float32 else 1e-12
    for what, (measured, reference) in pairs.items():
        assert measured[chain].shape == reference.shape, what
        assert measured[chain].count_nonzero() > 0, f"{what} is zero"
        error = (measured[chain].double() - reference).norm() / reference.norm()
        assert error <= tolerance, f"{what}: relative error {error:.1e}"
    assert abs(evaluation.loss[chain].double() - expected.loss) <= tolerance * expected.loss


@pytest.mark.parametrize(("name", "batch", "chains", "dtype"), CASES)
def test_layer_statistics(name: str, batch: int, chains: int, dtype: torch.dtype) -> None:
    """One chain with a shared batch, or three chains with their own."""
    model, (x, y) = build(name, dtype), data(name, batch, chains, dtype)
    params = chains_of(model, chains)
    shared = chains == 1
    batched = (x[0], y[0]) if shared else (x, y)
    evaluation = evaluate(
        build(name, dtype), params, *batched, requests=("second", "cross"), chain_axis=not shared
    )
    for c in range(chains):
        own = {k: p[c] for k, p in params.items()}
        expected = per_sample_loop(model, cross_entropy, x[c], y[c], own)
        assert_matches(evaluation, c, expected, requests=("second", "cross"))


@pytest.mark.parametrize("name", NETWORKS)
def test_while_the_backward_pass_goes_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(one_chain, "_at_once", lambda x: not transformations())
    model, (x, y) = build(name, torch.float64), data(name, 5, 1, torch.float64)
    params, requests = chains_of(model, 1), ("second", "cross")
    network = build(name, torch.float64)
    evaluation = evaluate(network, params, x, y, requests=requests, chain_axis=True)
    own = {k: p[0] for k, p in params.items()}
    expected = per_sample_loop(model, cross_entropy, x[0], y[0], own)
    assert_matches(evaluation, 0, expected, requests=requests)


@pytest.mark.parametrize("name", NETWORKS)
def test_per_sample_gradients(name: str) -> None:
    """What the full Fisher matrix is built from."""
    model, (x, y) = build(name, torch.float64), data(name, 5, 2, torch.float64)
    params = chains_of(model, 2)
    evaluation = evaluate(model, params, x, y, requests=("samples",), chain_axis=True)
    for c in range(2):
        own = {k: p[c] for k, p in params.items()}
        expected = per_sample_loop(model, cross_entropy, x[c], y[c], own)
        assert_matches(evaluation, c, expected, requests=("samples",))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised inside inductor
@pytest.mark.parametrize(
    ("chains", "dtype", "backend"),
    # Tracing is where statistics could be lost: the slow C++ compiler has its turn in
    # test_every_layer.py, on other layers, and in tests/fused, on the whole step.
    [
        pytest.param(1, torch.float64, "aot_eager", marks=pytest.mark.thorough),
        (3, torch.float32, "aot_eager"),
        pytest.param(3, torch.float32, "inductor", marks=pytest.mark.thorough),
    ],
)
def test_compiled(chains: int, dtype: torch.dtype, backend: str) -> None:
    """fullgraph=True, with and without several chains, on the network that has everything."""
    name = "everything"
    model, (x, y) = build(name, dtype), data(name, 5, chains, dtype)
    params = chains_of(model, chains)
    shared = chains == 1
    batched = (x[0], y[0]) if shared else (x, y)
    evaluation = evaluate(
        build(name, dtype), params, *batched, requests=("second", "cross"), chain_axis=not shared,
        backend=backend,
    )  # fmt: skip
    for c in range(chains):
        own = {k: p[c] for k, p in params.items()}
        expected = per_sample_loop(model, cross_entropy, x[c], y[c], own)
        assert_matches(evaluation, c, expected, requests=("second", "cross"))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("backend", [None, "eager"])
def test_layers_called_by_keyword(backend: str | None) -> None:
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = build("bias", torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return self.plain[2](input=torch.tanh(self.plain[0](input=x)))

    model, (x, y) = ByKeyword(), data("bias", 5, 2, torch.float64)
    params = chains_of(model, 2)
    evaluation = evaluate(
        ByKeyword(), params, x, y, requests=("second", "cross"), chain_axis=True, backend=backend
    )
    for c in range(2):
        own = {k: p[c] for k, p in params.items()}
        expected = per_sample_loop(model, cross_entropy, x[c], y[c], own)
        assert_matches(evaluation, c, expected, requests=("second", "cross"))


def test_repeating_the_batch_changes_nothing() -> None:
    """Means over samples: a batch seen twice has the same gradient and the same statistics.

    A rule that took the averaged loss's gradients for the per-sample ones would lose a factor of
    four in the second moments here."""
    params = chains_of(build("bias", torch.float64), 1)
    x, y = (t[0] for t in data("bias", 5, 1, torch.float64))
    once, twice = (
        evaluate(
            build("bias", torch.float64), params, x.repeat(r, 1), y.repeat(r),
            requests=("second", "cross"), chain_axis=False,
        )
        for r in (1, 2)
    )  # fmt: skip
    for k in params:
        torch.testing.assert_close(once.gradient[k], twice.gradient[k])
        torch.testing.assert_close(once.statistics.second[k], twice.statistics.second[k])


@pytest.mark.parametrize(
    "requests", [("second", "cross"), ("samples",), ("second", "cross", "samples")]
)
def test_model_targets(requests: tuple[str, ...]) -> None:
    """Statistics come from labels drawn from the model; the gradient still comes from the data."""
    model, likelihood = build("bias", torch.float64), likelihoods.Categorical()
    params = chains_of(model, 2)
    x, y = data("bias", 32, 2, torch.float64)
    evaluation = evaluate(
        build("bias", torch.float64),
        params,
        x,
        y,
        requests=requests,
        chain_axis=True,
        targets="model",
    )
    key = random.stream(random.origin(0, random.LABELS, torch.arange(2)), 0)
    for c in range(2):
        own = {k: p[c] for k, p in params.items()}
        outputs = torch.func.functional_call(model, own, (x[c],))
        drawn = likelihood.sample(outputs, key[c], {})
        assert 0 < (drawn != y[c]).sum() < 32
        of_data = per_sample_loop(model, cross_entropy, x[c], y[c], own)
        of_model = per_sample_loop(model, cross_entropy, x[c], drawn, own)
        mixed = of_model._replace(gradient=of_data.gradient, loss=of_data.loss)
        assert_matches(evaluation, c, mixed, requests=requests)


def test_a_layer_that_is_never_called_has_zero_statistics() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = build("bias"), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Unused()
    x, y = (t[0] for t in data("bias", 5, 1, torch.float32))
    statistics = evaluate(
        model, chains_of(model, 1), x, y, requests=("second", "cross"), chain_axis=False
    ).statistics
    assert statistics.second["unused.weight"].count_nonzero() == 0
    assert statistics.second["used.0.weight"].count_nonzero() > 0


def test_regression_loss() -> None:
    """The same equality for a Gaussian likelihood with several targets per sample."""
    model, sigma = build("bias", torch.float64), 0.3
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = x.flip(0)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return -torch.distributions.Normal(outputs, sigma).log_prob(targets).sum()

    params = chains_of(model, 1)
    expected = per_sample_loop(model, loss, x, y, {k: p[0] for k, p in params.items()})
    evaluation = evaluate(
        build("bias", torch.float64), params, x, y, requests=("second", "cross"), chain_axis=False,
        likelihood=likelihoods.Gaussian(sigma=sigma),
    )  # fmt: skip
    assert_matches(evaluation, 0, expected, requests=("second", "cross"))
