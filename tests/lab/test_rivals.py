"""The comparison with other methods: each learns something, and its rows add up."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from lab.models import resnet_frn
from lab.rivals import analytical, dynamics, effective, in_jax
from lab.rivals.__main__ import COLUMNS, summary, with_table
from lab.rivals.many import Many, nll
from lab.rivals.methods import METHODS, adamw
from lab.rivals.problems import Problem, lenet, resnet7, resnet18, resnet20
from natural_langevin.cli.experiments.bench_networks import GPT


def tiny() -> Problem:
    """Two classes that a line parts."""
    g = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(120, 2, generator=g)
    y = (x[:, 0] > 0).long()
    return Problem(lambda rate: nn.Linear(2, 2), x[:100], y[:100], x[100:], y[100:])


OTHERS = [pytest.param(n, marks=pytest.mark.thorough)
          for n in ("ensemble", "csgld", "multiswag", "dropout")]  # fmt: skip


@pytest.mark.parametrize("name", ["sghmc", *OTHERS])
def test_every_method_learns_a_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by .01 at every look: as many steps on every machine."""
    looks = itertools.count()
    monkeypatch.setattr("lab.rivals.many.time.perf_counter", lambda: 0.01 * next(looks))
    monkeypatch.setattr("lab.rivals.methods.adamw", lambda many, rate=0.0: adamw(many, 0.1))
    problem = tiny()
    p = METHODS[name](problem, 1.0, 0)(problem.test_x)
    assert p.shape == (20, 2)
    torch.testing.assert_close(p.sum(-1), torch.ones(20))
    assert float((p.argmax(-1) == problem.test_y).float().mean()) > 0.8


def test_stacked_adamw_is_torchs() -> None:
    problem = tiny()
    many = Many(lambda: problem.network(0.0), problem.learned, count=2, seed=0)
    other = problem.network(0.0)
    other.load_state_dict({k: v[1] for k, v in many.weights.items()})
    theirs = torch.optim.AdamW(other.parameters(), 1e-3, weight_decay=0.02)
    update = adamw(many)
    for seed in range(5):
        g = {
            k: torch.randn(v.shape, generator=torch.Generator().manual_seed(seed))
            for k, v in many.weights.items()
        }
        update(many.weights, g, torch.zeros(2))
        for k, p in other.named_parameters():
            p.grad = g[k][1].clone()
        theirs.step()
    for k, p in other.named_parameters():
        torch.testing.assert_close(p.detach(), many.weights[k][1])


def test_the_nll_of_a_mixture_and_the_table() -> None:
    p = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])
    assert float(nll(p, torch.tensor([1, 0]))) == pytest.approx(0.490415, abs=1e-5)
    same = {"problem": "small", "method": "ivon", "budget": 5.0, "took": 4.0, "nll": 0.5,
            "accuracy": 0.8, "ece": 0.1}  # fmt: skip
    failed = {"problem": "small", "method": "laplace", "budget": 5.0, "seed": 0, "error": "no"}
    own = [same | {"method": "ours", "seed": k, "nll": v} for k, v in enumerate((0.4, 0.5, 0.9))]
    rows = [same | {"seed": 0}, same | {"seed": 1, "nll": 0.7}, failed, *own]
    lines = summary(rows)
    assert lines[0] == ["small", "5", "ivon", "4 ± 0", "0.6000 ± 0.1414", "+0.1500 ± 0.0500",
                        "0.8000 ± 0.0000", "0.100 ± 0.000", "", "", "", "2"]  # fmt: skip
    assert lines[1][3] == "no"
    assert lines[2][5] == ""
    assert all(len(line) == len(COLUMNS) + 1 for line in lines)
    page = with_table("<!-- rivals:begin -->\n<!-- rivals:end -->", {"rows": rows})
    assert "| small | 5 | ivon |" in page


def test_the_residual_networks_posterior_is_the_known_one() -> None:
    """The same function of the same weights as the network of lab.models."""
    torch.manual_seed(0)
    theirs, own, x = resnet_frn(), resnet20(0.0), torch.randn(2, 3, 32, 32)
    for a, b in zip(theirs.parameters(), own.parameters(), strict=True):
        b.data = a.data + 0.1 * torch.randn(a.shape)
        a.data = b.data
    torch.testing.assert_close(own(x), theirs(x.movedim(1, -1)), atol=1e-4, rtol=1e-4)


def test_the_last_tenth_is_held_out() -> None:
    problem = tiny()
    assert torch.equal(torch.cat([problem.learned[0], problem.held_out[0]]), problem.x)
    assert len(problem.held_out[1]) == 10


def test_networks_one_after_the_other_have_the_same_gradients() -> None:
    """As on a GPU."""
    problem = tiny()
    many = Many(lambda: problem.network(0.0), problem.learned, count=3, seed=0)
    rows = torch.arange(60).reshape(3, 20)
    at_once = many._gradients(many.x[rows], many.y[rows])
    many.in_turn = True
    in_turn = many._gradients(many.x[rows], many.y[rows])
    torch.testing.assert_close(in_turn, at_once)


def test_effective_samples_per_second_of_independent_draws() -> None:
    values = torch.randn(4, 500, 3, generator=torch.Generator().manual_seed(0)).double().numpy()
    found = effective.described(effective.Run(values, 20.0, 10.0, {"steps": 500}))
    assert found["ess"][1] == pytest.approx(2000, rel=0.15)
    assert found["per_sampling_second"][1] == pytest.approx(found["ess"][1] / 10)
    assert found["per_second"][0] == pytest.approx(found["ess"][0] / 20)
    of = effective.small((2, 3, 1), 10)
    assert of.network()(of.x).shape == of.y.shape


INPUTS = {
    "lenet": (lambda: lenet(0.0), torch.randn(3, 1, 28, 28)),
    "resnet7": (lambda: resnet7(0.0), torch.randn(2, 3, 32, 32)),
    "resnet18": (lambda: resnet18(0.0), torch.randn(2, 3, 32, 32)),
    "resnet20": (lambda: resnet20(0.0), torch.randn(2, 3, 32, 32)),
    "gpt": (lambda: GPT(2, 8, 5, 7, 2), torch.randint(0, 7, (3, 5))),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_network_in_jax_is_torchs(name: str) -> None:
    jax = pytest.importorskip("jax")
    torch.manual_seed(0)
    make, x = INPUTS[name]
    network = make()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.1 * torch.randn(p.shape) * (p.ndim == 1))
    weights = {k: jax.numpy.asarray(p.detach().numpy()) for k, p in network.named_parameters()}
    together = "resnet" not in name
    found = in_jax.forward(network, weights, jax.numpy.asarray(x.numpy()), together=together)
    torch.testing.assert_close(torch.tensor(found.tolist()), network(x), atol=1e-5, rtol=1e-4)


def exact(of: analytical.Target, count: int) -> Tensor:
    """Draws of an analytical problem."""
    z = torch.randn(count, 10, generator=torch.Generator().manual_seed(0)).double()
    if of.name == "gaussian":
        return z @ torch.linalg.cholesky(torch.linalg.inv(of.precision.double())).T
    if of.name == "banana":
        x = 1 + z[:, :5]
        return torch.cat([x, x**2 + 0.1**0.5 * z[:, 5:]], 1)
    return torch.cat([3 * z[:, :1], (1.5 * z[:, :1]).exp() * z[:, 1:]], 1)


@pytest.mark.parametrize("name", analytical.MOVES)
def test_an_analytical_problem_has_its_moments_and_forces(name: str) -> None:
    """E[theta . grad U] is the dimension, and E[theta^2] as given; seed and size fixed before."""
    of = analytical.target(name, "isotropic")
    draws = exact(of, 100_000)
    grad = torch.func.grad(lambda t: analytical.energy(of, t, of.precision.double(), torch.exp))
    virial = (draws * vmap(grad)(draws)).sum(1)
    assert float(virial.mean()) == pytest.approx(10, abs=4 * float(virial.std()) / 100_000**0.5)
    error = draws.square().std(0) / 100_000**0.5
    assert bool(((draws.square().mean(0) - of.mean).abs() < 4 * error + 1e-3).all())
    assert float(analytical.bias(of, of.mean)) == 0


def test_chains_of_an_analytical_problem_move_by_their_length() -> None:
    """After a few steps the longest have gone further, and none is lost."""
    of = analytical.target("gaussian", "correlated")
    squares = analytical.ours(of, "ours, microcanonical", analytical.METRIC + 5, 0)
    assert squares.shape == (len(analytical.LENGTHS), analytical.CHAINS, 10)
    by_length = squares.sum(-1).mean(1)
    assert bool((by_length.diff() > 0).all())
    assert bool(by_length.isfinite().all())


def test_dynamics_are_compared_in_pairs() -> None:
    """Of two pairs and a run without another: Microcanonical minus BAOAB, with the pairs' error."""

    def found(nll: float) -> dict[str, float]:
        return {"nll": nll, "calibration_error": 0.0, "log_cpu": 1.0}

    rows = {
        "wave|BAOAB|0": found(0.5), "wave|Microcanonical|0": found(0.4),
        "plane|BAOAB|0": found(0.5), "plane|Microcanonical|0": found(0.7),
        "few|Microcanonical|0": found(9.0), "rare|BAOAB|0": {"failed": "it"},
        "rare|Microcanonical|0": found(9.0),
    }  # fmt: skip
    changes = dynamics.differences(rows, "development")
    assert changes["pairs"] == 2
    assert changes["nll"] == pytest.approx((0.05, 0.15))
    assert changes["ahead"] == 0.5
    assert dynamics.differences(rows, "networks") == {}
