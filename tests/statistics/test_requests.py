"""Unit blocks and Kronecker factors against the float64 loop over samples, however they are had."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from natural_langevin import Langevin, likelihoods, preconditioners
from natural_langevin.statistics import (
    Evaluation,
    Gradients,
    Network,
    Params,
    grouped,
    prepare_model,
)
from oracle import NETWORKS, build, chains_of, cross_entropy, kronecker_loop, per_sample_loop
from registry import batch, make

#: Of every form and every way: products with one and several positions, stacks, groups, rows folded
#: into the batch, several calls, tied weights, layers run again alone or with the whole network.
CASES = [
    "linear, two extra axes", "conv2d", "conv2d same, groups", "conv2d one position",
    "transposed 2d", "embedding", "learned positions", "layer norm", "batch norm of features",
    "bilinear", "attention, cross", "attention, other widths", "lstm", "tied head",
    "tied head, functional", "tied linear", "folded", "foreign layer", "menagerie",
]  # fmt: skip
BOTH = ("unit_blocks", "kronecker")
TYPES = (torch.float32, torch.float64)


def evaluate(
    model: nn.Module, params: Params, x: Tensor, y: Tensor, requests: tuple[str, ...],
    backend: str | None = None, basis: dict[str, tuple[Tensor, ...]] | None = None,
    **options: object,
) -> tuple[Evaluation, Gradients]:  # fmt: skip
    prepare_model(model)
    network = Network(model)
    gradients = Gradients(network, likelihoods.Categorical(), requests=requests, **options)
    gradients.prepare(params, x[0])
    run = gradients
    if backend is not None:
        run = torch.compile(gradients, fullgraph=True, dynamic=False, backend=backend)
    chains = len(x)
    key, step = torch.zeros(chains, 2, dtype=torch.int32), torch.zeros((), dtype=torch.int64)
    return (
        run(params, {}, (x, y), chain_axis=True, key=key, step=step, basis=basis or {}), gradients
    )  # fmt: skip


def assert_close(found: Tensor, expected: Tensor, what: object, tolerance: float = 1e-12) -> None:
    """Relative to the norm: a few hundred roundings; and not zero."""
    assert found.shape == expected.shape, what
    assert expected.norm() > 0, f"{what} is zero"
    error = (found.double() - expected).norm() / expected.norm()
    assert error <= tolerance, f"{what}: relative error {error:.1e}"


def rows_of(samples: Params, names: tuple[str, ...]) -> Tensor:
    """(n, *units, 1 + I): what a unit's parameters are, side by side, bias first."""
    first = samples[names[0]]
    lead = first.shape if len(names) > 1 else first.shape[:2]
    return torch.cat([samples[k].reshape(*lead, -1) for k in names], dim=-1)


@pytest.mark.parametrize("name", CASES)
def test_unit_blocks_equal_the_per_sample_loop(name: str) -> None:
    model, (x, y) = make(name, torch.float64), batch(name, 4, 2, torch.float64)
    params = chains_of(model, 2)
    evaluation, gradients = evaluate(make(name, torch.float64), params, x, y, ("unit_blocks",))
    statistics, units = evaluation.statistics, gradients.network.units()
    inner = {w for ws in units.values() for w in ws}
    assert set(statistics.blocks) == set(units)
    assert set(statistics.second) == params.keys() - units.keys() - inner
    assert not statistics.cross
    assert not statistics.samples
    for c in range(2):
        own = {k: p[c] for k, p in params.items()}
        samples = per_sample_loop(model, cross_entropy, x[c], y[c], own).samples
        for bias, weights in units.items():
            u = rows_of(samples, (bias, *weights))
            expected = torch.einsum("n...f,n...g->...fg", u, u) / len(u)
            assert_close(statistics.blocks[bias][c], expected, ("blocks", bias))
        for k, second in statistics.second.items():
            assert_close(second[c], samples[k].square().mean(0), ("second", k))


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("name", [n for n in NETWORKS if n != "frozen"])
def test_kronecker_factors_equal_the_per_sample_loop(name: str, sharing: str) -> None:
    model = build(name, torch.float64)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 5, *NETWORKS[name][1], generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (2, 5), generator=generator)
    params = chains_of(model, 2)
    evaluation, _ = evaluate(
        build(name, torch.float64), params, x, y, ("kronecker",), sharing=sharing
    )
    statistics = evaluation.statistics
    for c in range(2):
        own = {k: p[c] for k, p in params.items()}
        factors = kronecker_loop(model, cross_entropy, x[c], y[c], own, reduce=sharing == "reduce")
        assert {f"{layer}.weight" for layer in factors} == set(statistics.inputs)
        assert statistics.inputs.keys() == statistics.outputs.keys()
        for layer, (A, G) in factors.items():
            assert_close(statistics.inputs[f"{layer}.weight"][c], A, ("inputs", layer))
            assert_close(statistics.outputs[f"{layer}.weight"][c], G, ("outputs", layer))


@pytest.mark.parametrize(
    "name",
    [
        "conv2d", "conv2d same, groups", "conv2d one position", "attention, cross", "lstm",
        "tied head", "folded", "foreign layer",
    ],
)  # fmt: skip
def test_moments_in_a_basis_equal_the_per_sample_loop(name: str) -> None:
    """mean_n (U_G^T V_n U_A)^2 for one sample after the other, whatever the layer."""
    model, (x, y) = make(name, torch.float64), batch(name, 4, 2, torch.float64)
    params, generator = chains_of(model, 2), torch.Generator().manual_seed(2)
    first = {k: p[0] for k, p in params.items()}
    found = [
        per_sample_loop(model, cross_entropy, x[c], y[c], {k: p[c] for k, p in params.items()})
        for c in range(2)
    ]
    network = Network(make(name, torch.float64))
    network.install_hooks()
    basis, rows = {}, {}
    for group in grouped({k: p.shape for k, p in first.items()}, network.units(), {"rotated"}):
        if "rotated" in group.requests:
            v = torch.stack([rows_of(one.samples, group.names) for one in found])
            draws = (torch.randn(2, n, n, generator=generator) for n in v.shape[:1:-1])
            basis[group.matrix] = tuple(torch.linalg.qr(d.double())[0] for d in draws)
            rows[group.matrix] = v
    assert rows
    evaluation, _ = evaluate(make(name, torch.float64), params, x, y, ("rotated",), basis=basis)
    pieces, _ = evaluate(
        make(name, torch.float64), params, x, y, ("rotated",), basis=basis, microbatch=3
    )
    assert evaluation.statistics.rotated.keys() == rows.keys()
    for w, v in rows.items():
        u_a, u_g = basis[w]
        expected = torch.stack([
            torch.stack([(u_g[c].T @ one @ u_a[c]).square() for one in v[c]]).mean(0)
            for c in range(2)
        ])  # fmt: skip
        assert_close(evaluation.statistics.rotated[w], expected, w)
        assert_close(pieces.statistics.rotated[w], expected, w)


def partial_traces(u: Tensor) -> tuple[Tensor, Tensor]:
    """Over outputs, relative to the whole trace, and over inputs, of mean_n vec(u) vec(u)^T."""
    inputs = torch.einsum("nof,nog->fg", u, u) / len(u)
    return inputs / inputs.trace(), torch.einsum("nof,npf->op", u, u) / len(u)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("conv2d same, groups", ["0.weight"]), ("attention, cross", ["attention.in_proj_weight"]),
        ("tied head", ["embed.weight"]), ("subclass", ["0.weight"]),
        ("parameter without samples", ["project.weight"]),
    ],
)  # fmt: skip
def test_what_is_no_single_product_keeps_both_partial_traces(name: str, weights: list[str]) -> None:
    """Never silently wrong: from gradients written out, for any layer."""
    model, (x, y) = make(name, torch.float64), batch(name, 4, 2, torch.float64)
    params = chains_of(model, 2)
    evaluation, gradients = evaluate(make(name, torch.float64), params, x, y, ("kronecker",))
    statistics, units = evaluation.statistics, gradients.network.units()
    of = {ws[0] if ws else b: (b, *ws) for b, ws in units.items() if len(ws) < 2}
    assert set(weights) <= statistics.inputs.keys()
    for c in range(2):
        own = {k: p[c] for k, p in params.items()}
        samples = per_sample_loop(model, cross_entropy, x[c], y[c], own).samples
        for w in weights:
            A, G = partial_traces(rows_of(samples, of[w]))
            assert_close(statistics.inputs[w][c], A, ("inputs", w))
            assert_close(statistics.outputs[w][c], G, ("outputs", w))
        for k, second in statistics.second.items():
            assert second[c].shape == params[k][c].shape


def test_convolution_is_a_linear_map_of_patches() -> None:
    """K-FAC of a convolution (expand and reduce) from unfolded inputs and output gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2, bias=True), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)
    ).double()
    x, y = torch.randn(1, 5, 2, 3, 3, dtype=torch.float64), torch.tensor([[0, 1, 2, 1, 0]])
    h = model[0](x[0]).detach().requires_grad_()
    (delta,) = torch.autograd.grad(cross_entropy(model[1:](h), y[0]), h)
    a = torch.nn.functional.unfold(x[0], 2).mT  # (n, 4 positions, 8)
    a = torch.cat([torch.ones(5, 4, 1), a], dim=2).double()
    delta = delta.flatten(2).mT  # (n, 4 positions, 3)
    expected = {
        "expand": (
            torch.einsum("nti,ntj->ij", a, a) / 20, torch.einsum("nto,ntp->op", delta, delta) / 5
        ),
        "reduce": (
            torch.einsum("ni,nj->ij", a.mean(1), a.mean(1)) / 5,
            torch.einsum("no,np->op", delta.sum(1), delta.sum(1)) / 5,
        ),
    }  # fmt: skip
    params = {k: p.detach()[None] for k, p in model.named_parameters()}
    for sharing, (A, G) in expected.items():
        found, _ = evaluate(model, params, x, y, ("kronecker",), sharing=sharing)
        assert_close(found.statistics.inputs["0.weight"][0], A, sharing)
        assert_close(found.statistics.outputs["0.weight"][0], G, sharing)


def of_two_chains(name: str, dtype: torch.dtype) -> tuple[Params, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, *NETWORKS[name][1], generator=generator, dtype=torch.float64).to(dtype)
    return chains_of(build(name, dtype), 2), x, torch.randint(0, 3, (2, 5), generator=generator)


@pytest.mark.parametrize(
    ("name", "dtype", "backend"),
    # Traces of all layers' second moments and bias rows are in test_statistics.
    [("called twice", torch.float32, "eager")]
    + [pytest.param("everything", d, "aot_eager", marks=pytest.mark.thorough) for d in TYPES],
)
def test_traced(name: str, dtype: torch.dtype, backend: str) -> None:
    """fullgraph=True under vmap."""
    params, x, y = of_two_chains(name, dtype)
    eager, _ = evaluate(build(name, dtype), params, x, y, BOTH)
    traced, _ = evaluate(build(name, dtype), params, x, y, BOTH, backend=backend)
    torch.testing.assert_close(vars(traced.statistics), vars(eager.statistics))


@pytest.mark.parametrize("dtype", TYPES)
def test_in_pieces_and_beside_others(dtype: torch.dtype) -> None:
    """On the network that has everything."""
    params, x, y = of_two_chains("everything", dtype)
    eager, _ = evaluate(build("everything", dtype), params, x, y, BOTH)
    pieces, _ = evaluate(build("everything", dtype), params, x, y, BOTH, microbatch=2)
    torch.testing.assert_close(vars(pieces.statistics), vars(eager.statistics))
    every = (*BOTH, "second", "cross", "samples")
    written, _ = evaluate(build("everything", dtype), params, x, y, every)
    torch.testing.assert_close(written.statistics.blocks, eager.statistics.blocks)
    assert written.statistics.samples.keys() == params.keys()


@pytest.mark.parametrize("requests", [("unit_blocks",), ("kronecker",), BOTH])
def test_a_layer_that_is_never_called_has_zero_statistics(requests: tuple[str, ...]) -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = build("bias", torch.float64), nn.Linear(2, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Unused()
    x, y = torch.ones(1, 5, 3, dtype=torch.float64), torch.zeros(1, 5, dtype=torch.int64)
    found, _ = evaluate(model, chains_of(model, 1), x, y, requests)
    leaves = pytree.tree_flatten_with_path(vars(found.statistics))[0]
    assert leaves
    for path, value in leaves:
        unused = any("unused" in str(key) for key in path)
        assert (value.count_nonzero() == 0) == unused, path


def test_unknown_requests_are_refused() -> None:
    with pytest.raises(ValueError, match=r"requests are some of .*'second'.*got \('hessian',\)"):
        Gradients(Network(nn.Linear(1, 1)), likelihoods.Categorical(), requests=("hessian",))


def test_wide_units_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"'weight' have 300\. Use KroneckerFisher\(\)"):
        Langevin(
            nn.Linear(300, 2), likelihoods.Categorical(),
            preconditioner=preconditioners.UnitFisher(),
        )  # fmt: skip
    raised = preconditioners.UnitFisher(max_fan_in=300)
    sampler = Langevin(nn.Linear(300, 2), likelihoods.Categorical(), preconditioner=raised)
    assert sampler.init().metric["blocks"]["bias"]["weight"].shape == (4, 2, 301, 301)
    for kind, wrong in (("UnitFisher", "expand"), ("KroneckerFisher", "exact")):
        with pytest.raises(ValueError, match=f"sharing must be .*, got '{wrong}'"):
            getattr(preconditioners, kind)(sharing=wrong)
