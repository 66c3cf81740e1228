"""Rivals that are networks of two hidden layers of 50: five by Adam, dropout, IVON, Laplace.

They learn rate and decay (or dropout) by the NLL of a tenth of the training rows, where each of
them also stops; positive targets are learned as they are or as their logarithm, likewise. A network
says the probabilities of classes, a mean and a width of numbers, rate and size of a negative
binomial of counts and, where a tenth is zero, the probability of that as well. laplace-torch (last
layer, Kronecker factors, evidence) has laws for classes and numbers of one width alone.
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.tables.laws import Amounts, Array, Counts

METHODS = ("five Adam networks", "MC dropout", "IVON", "laplace-torch")
UNITS, MEMBERS, PASSES = 50, 5, 50
RATES, DECAYS, DROPOUTS, IVON_RATES = (1e-2, 1e-3), (0.0, 1e-2), (0.05, 0.2), (0.1, 0.03, 0.3)
EPOCHS, PATIENCE, MOST_STEPS = 300, 20, 6000


class Data(NamedTuple):
    """Rows to learn from and rows held out, the kind of target, and how it was standardised."""

    x: Tensor
    y: Tensor
    x_out: Tensor
    y_out: Tensor
    kind: str
    outputs: int
    centre: float
    width: float
    log: bool
    most: float


class Ensemble(nn.Module):
    """Several perceptrons at once: (member, n, outputs)."""

    def __init__(self, sizes: list[int], members: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        shapes = list(pairwise(sizes))
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(members, a, b) * math.sqrt(2 / a) * (1 if k + 1 < len(shapes)
                         else 0.1)) for k, (a, b) in enumerate(shapes)
        )  # fmt: skip
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(members, 1, b)) for _, b in shapes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) or (member, n, inputs) -> (member, n, outputs)."""
        h = x.expand(len(self.weights[0]), *x.shape[-2:])
        for k, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(b, h, w)
            if k + 1 < len(self.weights):
                h = functional.dropout(functional.relu(h), self.dropout, self.training)
        return h


def losses(outputs: Tensor, y: Tensor, kind: str) -> Tensor:
    """-ln p(y_n) on the standardised scale, (member, n)."""
    if kind == "class":
        return functional.cross_entropy(
            outputs.flatten(0, 1), y.expand(outputs.shape[:2]).flatten(), reduction="none"
        ).reshape(outputs.shape[:2])
    if kind == "count":
        rate, size = outputs[..., 0].clamp(-10, 10).exp(), outputs[..., 1].clamp(-3, 8).exp()
        law = torch.distributions.NegativeBinomial(
            size, probs=rate / (rate + size), validate_args=False
        )
        return -law.log_prob(y)
    scale = outputs[..., 1].clamp(-7, 7)
    amount = 0.5 * ((y.nan_to_num(0.0) - outputs[..., 0]) / scale.exp()) ** 2 + scale
    amount = amount + 0.5 * math.log(2 * math.pi)
    if kind != "zeros":
        return amount
    zero = y.isnan().expand(outputs.shape[:2])  # NaN stands for zero
    logits = outputs[..., 2]
    loss = functional.binary_cross_entropy_with_logits(logits, zero.float(), reduction="none")
    return loss + torch.where(zero, 0.0, amount)


def mixture_nll(outputs: Tensor, data: Data) -> float:
    """Held-out NLL of all members together, in the target's units."""
    terms = -losses(outputs, data.y_out, data.kind)
    found = -(torch.logsumexp(terms, 0) - math.log(len(terms))).mean()
    if data.kind in ("number", "zeros"):
        there = ~data.y_out.isnan()
        jacobian = there.double() * math.log(data.width)
        if data.log:
            jacobian = jacobian + data.y_out.nan_to_num(0.0) * data.width + there * data.centre
        found = found + jacobian.mean()
    return float(found)


def batch_of(rows: int) -> int:
    """Rows of a minibatch: more of them where there are many."""
    return 50 if rows < 500 else 100 if rows < 5000 else 256


def train(
    data: Data, *, members: int, rate: float, decay: float, dropout: float, seed: int
) -> Ensemble:
    """Members, each as it was where its held-out NLL was lowest."""
    torch.manual_seed(seed)
    network = Ensemble([data.x.shape[1], UNITS, UNITS, data.outputs], members, dropout)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
    best = torch.full((members,), math.inf)
    kept, waited, taken = copy.deepcopy(network), 0, 0
    for _ in range(EPOCHS):
        network.train()
        for rows in torch.randperm(len(data.x)).split(batch_of(len(data.x))):
            optimizer.zero_grad()
            losses(network(data.x[rows]), data.y[rows], data.kind).mean(1).sum().backward()
            optimizer.step()
            taken += 1
        network.eval()
        with torch.no_grad():
            found = losses(network(data.x_out), data.y_out, data.kind).mean(1)
            better = found < best
            best = torch.where(better, found, best)
            for p, q in zip(kept.parameters(), network.parameters(), strict=True):
                p[better] = q[better]
        waited = 0 if bool(better.any()) else waited + 1
        if waited == PATIENCE or taken > MOST_STEPS:
            break
    return kept


def outputs_of(network: Ensemble, x: Tensor) -> Tensor:
    """Of every member or, with dropout, of every pass: (member, n, outputs)."""
    with torch.no_grad():
        if not network.dropout:
            return network.eval()(x)
        network.train()
        return torch.cat([network(x) for _ in range(PASSES)])


def ivon(data: Data, x_test: Tensor, rate: float, seed: int) -> tuple[float, Tensor]:
    """Held-out NLL and test outputs of draws from IVON's posterior."""
    from ivon import IVON

    torch.manual_seed(seed)
    network = Ensemble([data.x.shape[1], UNITS, UNITS, data.outputs], 1, 0.0)
    rows = len(data.x)
    optimizer = IVON(network.parameters(), lr=rate, ess=rows, hess_init=0.5, weight_decay=1 / rows)
    steps = min(MOST_STEPS, max(2000, 100 * rows // batch_of(rows)))
    taken = 0
    while taken < steps:
        for part in torch.randperm(rows).split(batch_of(rows)):
            with optimizer.sampled_params(train=True):
                optimizer.zero_grad()
                losses(network(data.x[part]), data.y[part], data.kind).mean().backward()
                # Within: IVON reads gradient and curvature where this ends.
                torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            for group in optimizer.param_groups:
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * min(1.0, taken / steps)))
            optimizer.step()
            taken += 1

    def draws(x: Tensor) -> Tensor:
        some = []
        for _ in range(PASSES):
            with torch.no_grad(), optimizer.sampled_params():
                some.append(network(x))
        return torch.cat(some)

    return mixture_nll(draws(data.x_out), data), draws(x_test)


def laplace(data: Data, x_test: Tensor, settings: dict[str, Any], seed: int) -> Any:
    """laplace-torch around the first of the five: probabilities, or mean and width."""
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(seed)
    numbers = data.kind == "number"
    members = train(data, members=1, seed=seed, **settings)
    layers: list[nn.Module] = []
    for w, b in zip(members.weights, members.biases, strict=True):
        outputs = 1 if numbers and w is members.weights[-1] else w.shape[2]
        layer = nn.Linear(w.shape[1], outputs)
        layer.weight.data = w.data[0].T[:outputs].contiguous()
        layer.bias.data = b.data[0, 0, :outputs].clone()
        layers += [layer, nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    loader = DataLoader(
        TensorDataset(data.x, data.y[:, None] if numbers else data.y), batch_size=500
    )
    found = Laplace(network, "regression" if numbers else "classification",
                    subset_of_weights="last_layer", hessian_structure="kron")  # fmt: skip
    if numbers:
        with torch.no_grad():
            found.sigma_noise = float((network(data.x_out)[:, 0] - data.y_out).std())
    found.fit(loader)
    found.optimize_prior_precision(method="marglik")
    said = [found(part) for part in x_test.split(500)]
    if not numbers:
        return torch.cat(said).detach().numpy()
    mean = torch.cat([m.flatten() for m, _ in said]).detach().numpy()
    variance = torch.cat([v.flatten() for _, v in said]).detach().numpy()
    noise = float(found.sigma_noise)
    return Amounts(
        (data.centre + data.width * mean)[None],
        data.width * np.sqrt(variance + noise**2)[None],
        log=data.log,
        most=data.most,
    )


def law_of(outputs: Tensor, data: Data) -> Any:
    """Members' outputs as a law, or as class probabilities."""
    if data.kind == "class":
        return outputs.double().softmax(-1).mean(0).numpy()
    said = outputs.double().numpy()
    if data.kind == "count":
        return Counts(np.exp(np.clip(said[..., 0], -10, 10)), np.exp(np.clip(said[..., 1], -3, 8)))
    zero = 1 / (1 + np.exp(-said[..., 2])) if data.kind == "zeros" else None
    scale = data.width * np.exp(np.clip(said[..., 1], -7, 7))
    return Amounts(
        data.centre + data.width * said[..., 0], scale, log=data.log, zero=zero, most=data.most
    )


def _data(x: Array, y: Array, kind: str, log: bool, seed: int) -> Data:
    given = torch.as_tensor(x, dtype=torch.float32)
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    out, inside = rows[: max(10, len(y) // 10)], rows[max(10, len(y) // 10) :]
    centre, width = 0.0, 1.0
    if kind == "class":
        target, outputs = torch.as_tensor(y), int(y.max()) + 1
    elif kind == "count":
        target, outputs = torch.as_tensor(y, dtype=torch.float32), 2
    else:
        with np.errstate(divide="ignore"):
            z = np.log(y) if log else y.astype(float)
        if kind == "zeros":
            z = np.where(y > 0, z, np.nan)
        centre, width = float(np.nanmean(z)), float(np.nanstd(z))
        target = torch.as_tensor((z - centre) / width, dtype=torch.float32)
        outputs = 3 if kind == "zeros" else 2
    return Data(
        given[inside], target[inside], given[out], target[out], kind, outputs, centre, width, log,
        2 * float(y.max()),
    )  # fmt: skip


def predict(
    method: str, x: Array, y: Array, x_test: Array, kind: str, seed: int, *, zeros: bool
) -> Any:
    """The law, or the class probabilities, of the test rows; None where a method has none."""
    kind = "zeros" if zeros else kind
    if method == "laplace-torch" and kind in ("count", "zeros"):
        return None
    scales = {"zeros": (True,), "number": (False, True)}.get(kind, (False,))
    if kind == "number" and y.min() <= 0:
        scales = (False,)
    test = torch.as_tensor(x_test, dtype=torch.float32)
    members = MEMBERS if method == "five Adam networks" else 1
    dropping = method == "MC dropout"
    grid = [
        {"rate": rate, "decay": decay, "dropout": dropout}
        for rate, decay, dropout in product(
            RATES, (0.0,) if dropping else DECAYS, DROPOUTS if dropping else (0.0,)
        )
    ]
    if method == "IVON":
        grid = [{"rate": rate} for rate in IVON_RATES]
    tried: list[tuple[float, Any]] = []

    def attempt(data: Data, settings: dict[str, float]) -> None:
        said: Any
        if method == "IVON":
            nll, said = ivon(data, test, settings["rate"], seed)
        else:
            network = train(data, members=members, seed=seed, **settings)
            nll = mixture_nll(outputs_of(network, data.x_out), data)
            said = settings if method == "laplace-torch" else outputs_of(network, test)
        tried.append((nll if math.isfinite(nll) else math.inf, (said, data)))

    for log in scales:  # the scale by the first settings, the others on that scale
        attempt(_data(x, y, kind, log, seed), grid[0])
    data = min(tried, key=lambda t: t[0])[1][1]
    for settings in grid[1:]:
        attempt(data, settings)
    said, data = min(tried, key=lambda t: t[0])[1]
    return laplace(data, test, said, seed) if method == "laplace-torch" else law_of(said, data)
