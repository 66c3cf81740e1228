"""The oracle of the gradient statistics: a float64 Python loop over samples, and test networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin.statistics import Evaluation

Params = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) of one sample -> number


class Expected(NamedTuple):
    """What one chain's batch should give, all in float64."""

    loss: Tensor
    gradient: Params
    second: Params
    cross: dict[str, Params]
    samples: Params  # (B, *shape)


def per_sample_loop(
    model: nn.Module, loss: Loss, x: Tensor, y: Tensor, params: Params | None = None
) -> Expected:
    """One sample at a time: loss, autograd, square; then the means over samples."""
    model = copy.deepcopy(model).double()
    if params is not None:
        model.load_state_dict({k: v.double() for k, v in params.items()}, strict=False)
    trainable = {k: p for k, p in model.named_parameters() if p.requires_grad}
    x, y = (t.double() if t.is_floating_point() else t for t in (x, y))
    losses: list[Tensor] = []
    samples: dict[str, list[Tensor]] = {k: [] for k in trainable}
    for n in range(len(x)):
        value = loss(model(x[n : n + 1]), y[n : n + 1])
        losses.append(value.detach())
        for k, g in zip(trainable, torch.autograd.grad(value, trainable.values()), strict=True):
            samples[k].append(g)
    stacked = {k: torch.stack(g) for k, g in samples.items()}
    return Expected(
        loss=torch.stack(losses).mean(),
        gradient={k: g.mean(0) for k, g in stacked.items()},
        second={k: g.square().mean(0) for k, g in stacked.items()},
        cross={
            b: {w: (spread(stacked[b], stacked[w]) * stacked[w]).mean(0)}
            for b in stacked
            if b.endswith("bias") and (w := b.removesuffix("bias") + "weight") in stacked
            if stacked[w].shape[: stacked[b].ndim] == stacked[b].shape
        },
        samples=stacked,
    )


#: By layer: mean of a a^T (behind a one where the bias is trainable) and of delta delta^T.
Factors = dict[str, tuple[Tensor, Tensor]]


def kronecker_loop(
    model: nn.Module, loss: Loss, x: Tensor, y: Tensor, params: Params, *, reduce: bool = False
) -> Factors:
    """The Kronecker factors of every nn.Linear, one sample at a time, seen from hooks.

    All calls and positions of a sample: as samples of their own, or, ``reduce``, as one."""
    model = copy.deepcopy(model).double()
    model.load_state_dict({k: v.double() for k, v in params.items()}, strict=False)
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            output.retain_grad()
            seen.setdefault(name, []).append((args[0].detach(), output))
            return output.clone()  # the next layer may work in place

        return hook

    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    for name, layer in layers.items():
        layer.register_forward_hook(watch(name))
    sums: Factors = {}
    for n in range(len(x)):
        seen.clear()
        loss(model(x[n : n + 1].double()), y[n : n + 1]).backward()
        for name, calls in seen.items():
            a = torch.cat([inputs.flatten(0, -2) for inputs, _ in calls])
            delta = torch.cat([output.grad.flatten(0, -2) for _, output in calls])
            bias = layers[name].bias
            if bias is not None and bias.requires_grad:
                a = torch.cat([torch.ones(len(a), 1, dtype=a.dtype), a], dim=1)
            if reduce:
                a, delta = a.mean(0, keepdim=True), delta.sum(0, keepdim=True)
            A, G = a.mT @ a / len(a) / len(x), delta.mT @ delta / len(x)
            before = sums.get(name, (torch.zeros_like(A), torch.zeros_like(G)))
            sums[name] = (before[0] + A, before[1] + G)
    return sums


def flat(tree: Params, start: int = 0) -> Tensor:
    """Axes from ``start`` on flattened, parameters side by side."""
    return torch.cat([v.flatten(start) for v in tree.values()], dim=-1).double()


def dense(linear: Callable[[Params], Params], like: Params) -> Tensor:
    """The matrix of a linear map on trees, column by column: float64, (chain, P, P)."""
    sizes = [p[0].numel() for p in like.values()]
    columns = []
    for basis in torch.eye(sum(sizes)):
        parts = basis.split(sizes)
        tree = {
            k: e.to(p).reshape(p.shape[1:]).expand_as(p)
            for (k, p), e in zip(like.items(), parts, strict=True)
        }
        image = linear(tree)
        columns.append(flat({k: image[k] for k in like}, 1))
    return torch.stack(columns, dim=-1)


def spread(bias: Tensor, weight: Tensor) -> Tensor:
    """(n, unit), shaped to broadcast against (n, unit, ...)."""
    return bias.reshape(bias.shape + (1,) * (weight.ndim - bias.ndim))


def assert_exact(evaluation: Evaluation, chain: int, samples: Params) -> None:
    """Gradient, second moments and bias rows from per-sample gradients (B, *shape) in float64.

    Errors are relative to the norm: a few hundred roundings (1.1e-5 were seen on an x86 core where
    an Arm core stays below 1e-5)."""
    tolerance = 1.5e-5 if evaluation.loss.dtype == torch.float32 else 1e-12
    statistics = evaluation.statistics
    assert evaluation.gradient.keys() == statistics.second.keys() == samples.keys()
    pairs = {}
    for k, g in samples.items():
        pairs["gradient", k] = (evaluation.gradient[k], g.mean(0))
        pairs["second", k] = (statistics.second[k], g.square().mean(0))
    for b, row in statistics.cross.items():
        for w, cross in row.items():
            expected = (spread(samples[b], samples[w]) * samples[w]).mean(0)
            pairs["cross", b, w] = (cross, expected)
    for what, (measured, reference) in pairs.items():
        assert measured[chain].shape == reference.shape, what
        assert measured[chain].count_nonzero() > 0, f"{what} is zero"
        error = (measured[chain].double() - reference).norm() / reference.norm()
        assert error <= tolerance, f"{what}: relative error {error:.1e}"


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="sum")


class Twice(nn.Module):
    """One hidden layer called twice, in a nested module, with in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"hidden": nn.Linear(4, 4), "relu": nn.ReLU(inplace=True)})

    def forward(self, h: Tensor) -> Tensor:
        for _ in range(2):
            h = self.block["relu"](self.block["hidden"](h)) + h
        return h


class Sequence(nn.Module):
    """Linear on (B, 5, 3), then the mean over the five positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(x)).mean(1))


class Everything(nn.Module):
    """Sequences, a layer called twice, in-place ReLU, no bias, frozen parts, nesting."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.body = nn.Sequential(Twice(), nn.Linear(4, 4, bias=False), nn.Tanh())
        self.head = nn.Linear(4, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(torch.tanh(self.embed(x)).mean(1)))


def _plain(*, bias: bool = True, activation: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 4, bias=bias), activation or nn.Tanh(), nn.Linear(4, 3, bias=bias)
    )


def _frozen() -> nn.Module:
    model = _plain()
    model[0].bias.requires_grad_(False)  # a weight whose bias is frozen: no bias row
    model[2].weight.requires_grad_(False)  # a bias whose weight is frozen
    return model


#: name -> (builder, shape of one input)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "bias": (_plain, (3,)),
    "no bias": (lambda: _plain(bias=False), (3,)),
    "in-place ReLU": (lambda: _plain(activation=nn.ReLU(inplace=True)), (3,)),
    "called twice": (lambda: nn.Sequential(nn.Linear(3, 4), Twice(), nn.Linear(4, 3)), (3,)),
    "sequence": (Sequence, (5, 3)),
    "frozen": (_frozen, (3,)),
    "everything": (Everything, (5, 3)),
}


def build(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The named network, with the same weights every time and the global generator left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return NETWORKS[name][0]().to(dtype)


def chains_of(model: nn.Module, chains: int, spread: float = 0.3) -> Params:
    """Trainable parameters (chain, *shape): the model's own, moved apart."""
    generator = torch.Generator().manual_seed(3)
    return {
        k: p.detach()
        + spread * torch.randn(chains, *p.shape, generator=generator, dtype=torch.float64).to(p)
        for k, p in model.named_parameters()
        if p.requires_grad
    }
