"""Adapters of a pretrained character transformer, fitted to 200 labelled lines: how a line ends.

    python -m lab.adapters --text shakespeare.txt --out results/adapters.json --device cuda --jobs 5

A causal transformer is pretrained as a language model on other lines of the same text. Low-rank
adapters in every attention and feed-forward layer, and a linear head on the last character's
features, then learn which sign a line without it had at its end (four classes), from 160 lines,
with 40 more to choose by. All begin alike; ours is asked to take ``--seconds`` in all, and every
other method has as long as it took:

    ours         a MAP, then ``Langevin.from_trained(parameters="adapters", held_out=...)``
    MAP          Adam with three weight decays, each stopped where the 40 lines are best
    MC-dropout   the same with dropout of .1 and .3 in adapters and head, 30 passes
    laplace      laplace-torch on the head of a MAP, its prior by the marginal likelihood
    IVON         three step sizes, each stopped where the 40 lines are best, 30 draws

Rows are a seed each: other lines, adapters and heads. ``--jobs`` seeds run side by side.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.command import at_least, study
from lab.results import complete
from natural_langevin import Langevin, likelihoods, metrics

WINDOW, CLASSES, LINES, HELD_OUT, TEST, DRAWS = 48, 4, 200, 40, 2000, 30
SIGNS = {",": 0, ".": 1, "?": 2, "!": 2}


class Block(nn.Module):
    """Causal self-attention and a two-layer network, each added to its normalised input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.network_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.joint(self.attention_norm(x))
        q, k, v = joint.unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(-3, -2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.network_norm(x))))


class Transformer(nn.Module):
    """``head``: of characters at every position, or of classes at the last; character 0 is none."""

    def __init__(self, characters: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, width)
        self.position = nn.Embedding(WINDOW, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.last_norm = nn.LayerNorm(width)
        self.head: nn.Module = nn.Linear(width, characters)
        self.classifies = False

    def forward(self, codes: Tensor) -> Tensor:
        places = torch.arange(codes.shape[1], device=codes.device).expand_as(codes)
        h = self.last_norm(self.blocks(self.character(codes) + self.position(places)))
        if self.classifies:
            used = codes > 0
            last = used & ~F.pad(used[:, 1:], (0, 1))
            h = (h * last.to(h.dtype).unsqueeze(-1)).sum(1)
        found: Tensor = self.head(h)
        return found


class Adapted(nn.Module):
    """A linear layer with a low-rank one beside it, which begins at zero; dropout before it."""

    def __init__(self, layer: nn.Linear, rank: int, dropout: float) -> None:
        super().__init__()
        self.base_layer, self.dropout = layer, nn.Dropout(dropout)
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base_layer(x) + self.lora_B(self.lora_A(self.dropout(x)))
        return found


def adapted(
    pretrained: Transformer, seed: int, *, rank: int = 4, dropout: float = 0.0
) -> nn.Module:
    """A copy with adapters and a new head, which alone are trainable."""
    torch.manual_seed(seed)
    net = copy.deepcopy(pretrained)
    for p in net.parameters():
        p.requires_grad_(False)
    width = net.last_norm.normalized_shape[0]
    device = net.character.weight.device
    for block in net.blocks:
        for name in ("joint", "out", "up", "down"):
            setattr(block, name, Adapted(getattr(block, name), rank, dropout).to(device))
    layers = {"dropout": nn.Dropout(dropout), "modules_to_save": nn.Linear(width, CLASSES)}
    net.head = nn.Sequential()
    for name, layer in layers.items():
        net.head.add_module(name, layer.to(device))
    for name, p in net.named_parameters():
        p.requires_grad_("lora_" in name or "modules_to_save" in name)
    net.classifies = True
    return net


class Corpus(NamedTuple):
    """Codes of the text to pretrain on, and labelled lines, (line, WINDOW)."""

    text: Tensor
    characters: int
    x: Tensor
    y: Tensor


def corpus(path: Path) -> Corpus:
    """The first two thirds of the text are to pretrain on. Of the lines of the last third, the sign
    at the end is the label: a comma, a full stop, a question or a call, anything else."""
    text = path.read_text(encoding="utf-8")
    code = {c: k + 1 for k, c in enumerate(sorted(set(text)))}
    first = text[: 2 * len(text) // 3]
    lines = [
        (line.rstrip(",.?!;:-'")[-WINDOW:], SIGNS.get(line[-1], len(set(SIGNS.values()))))
        for line in text[len(first) :].splitlines()
        if len(line) >= 20 and not line.endswith(":")
    ]
    x = torch.zeros(len(lines), WINDOW, dtype=torch.long)
    for row, (line, _) in enumerate(lines):
        x[row, : len(line)] = torch.tensor([code[c] for c in line])
    codes = torch.tensor([code[c] for c in first])
    return Corpus(codes, len(code) + 1, x, torch.tensor([label for _, label in lines]))


def pretrained(data: Corpus, given: argparse.Namespace) -> Transformer:
    """A language model of the text, by Adam."""
    torch.manual_seed(0)
    net = Transformer(data.characters, given.width, 4, given.depth).to(given.device)
    text, g = data.text.to(given.device), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    places = torch.arange(WINDOW + 1, device=given.device)
    for _ in range(given.pretraining):
        first = torch.randint(0, len(text) - WINDOW - 1, (64, 1), generator=g).to(given.device)
        rows = text[first + places]
        loss = F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(
        f"pretrained: {float(loss.detach()):.3f} nats a character after {given.pretraining} steps"
    )
    return net


class Task(NamedTuple):
    """Lines to learn from, to choose by and to be scored on, each (x, y)."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def task(data: Corpus, seed: int, device: str) -> Task:
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed))
    parts = order[: LINES + TEST].split([LINES - HELD_OUT, HELD_OUT, TEST])
    found = [(data.x[rows].to(device), data.y[rows].to(device)) for rows in parts]
    return Task(*found)


Predict = Callable[[Tensor], Tensor]


def plain(net: nn.Module) -> Predict:
    """Class probabilities of a network in evaluation mode."""

    def predict(x: Tensor) -> Tensor:
        net.eval()
        with torch.no_grad():
            return torch.cat([net(part).softmax(-1) for part in x.split(500)])

    return predict


def averaged(net: nn.Module, once: Callable[[], Any]) -> Predict:
    """The mean of ``DRAWS`` passes, each inside ``once()``."""

    def predict(x: Tensor) -> Tensor:
        total = torch.zeros(())
        for _ in range(DRAWS):
            with torch.no_grad(), once():
                p = torch.cat([net(part).softmax(-1) for part in x.split(500)])
            total = p / DRAWS + total.to(p)
        return total

    return predict


def trained(
    net: nn.Module, optimizer: Any, of: Task, seconds: float, predict: Predict, *, inside: Any
) -> float:
    """Trains until the time is over, and leaves the network where the held-out lines were best:
    their NLL. ``inside()`` is a context around each forward and backward pass."""
    ends, best, kept = time.perf_counter() + seconds, math.inf, copy.deepcopy(net.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    (x, y), step = of.train, 0
    while time.perf_counter() < ends:
        net.train()
        for rows in torch.randperm(len(x), device=x.device).split(32):
            with inside():
                optimizer.zero_grad()
                F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        if step % 4 == 0:
            now = metrics.nll(predict(of.held_out[0]), of.held_out[1])
            if now < best:
                best, kept = now, copy.deepcopy(net.state_dict())
                state = copy.deepcopy(optimizer.state_dict())
        step += 1
    net.load_state_dict(kept)
    optimizer.load_state_dict(state)
    return best


def of_trainable(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.requires_grad]


def nothing() -> Any:
    return torch.enable_grad()


def maximum(
    base: Transformer, of: Task, seed: int, seconds: float, dropout: tuple[float, ...] = (0.0,)
) -> tuple[nn.Module, Predict]:
    """The best on the held-out lines of several weight decays, or of several dropouts."""
    decays = (1e-4, 1e-2, 1e-1) if len(dropout) == 1 else (1e-2,)
    found: list[tuple[float, nn.Module, Predict]] = []
    for p in dropout:
        for decay in decays:
            net = adapted(base, seed, dropout=p)
            optimizer = torch.optim.AdamW(of_trainable(net), 3e-3, weight_decay=decay)
            predict = plain(net)
            if p:
                predict = averaged(net, lambda net=net: _training(net))  # type: ignore[misc]
            share = seconds / (len(dropout) * len(decays))
            best = trained(net, optimizer, of, share, predict, inside=nothing)
            found.append((best, net, predict))
    _, net, predict = min(found, key=lambda one: one[0])
    return net, predict


def _training(net: nn.Module) -> Any:
    net.train()
    return torch.no_grad()


def by_map(base: Transformer, of: Task, seed: int, seconds: float) -> Predict:
    return maximum(base, of, seed, seconds)[1]


def by_dropout(base: Transformer, of: Task, seed: int, seconds: float) -> Predict:
    return maximum(base, of, seed, seconds, dropout=(0.1, 0.3))[1]


def by_laplace(base: Transformer, of: Task, seed: int, seconds: float) -> Predict:
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    net, _ = maximum(base, of, seed, 0.9 * seconds)
    net.eval()
    found: Any = Laplace(
        net, "classification", subset_of_weights="last_layer", hessian_structure="kron",
        last_layer_name="head.modules_to_save",
    )  # fmt: skip
    found.fit(DataLoader(TensorDataset(*of.train), batch_size=40))
    found.optimize_prior_precision(method="marglik")
    return lambda x: torch.cat([found(part, link_approx="probit") for part in x.split(500)])


def by_ivon(base: Transformer, of: Task, seed: int, seconds: float) -> Predict:
    import ivon

    found: list[tuple[float, Predict]] = []
    sizes = (0.03, 0.1, 0.3)
    for size in sizes:
        net = adapted(base, seed)
        optimizer = ivon.IVON(
            of_trainable(net), lr=size, ess=len(of.train[0]), weight_decay=1e-2, hess_init=0.1
        )
        inside = partial(optimizer.sampled_params, train=True)
        predict = averaged(net, optimizer.sampled_params)
        best = trained(net, optimizer, of, seconds / len(sizes), predict, inside=inside)
        found.append((best, predict))
    return min(found, key=lambda one: one[0])[1]


def by_ours(base: Transformer, of: Task, seed: int, seconds: float) -> Predict:
    began = time.perf_counter()
    net, _ = maximum(base, of, seed, 0.2 * seconds)
    sampler = Langevin.from_trained(
        net.eval(), likelihoods.Categorical(), parameters="adapters", held_out=of.held_out,
        seed=seed,
    )  # fmt: skip
    left = seconds - (time.perf_counter() - began)
    posterior = sampler.sample(of.train, seconds=left, progress=False)
    return lambda x: posterior.predict(x, keep_samples=False).mean


METHODS = {
    "ours": by_ours,
    "MAP": by_map,
    "MC-dropout": by_dropout,
    "laplace": by_laplace,
    "IVON": by_ivon,
}


def row(seed: int, *, base: Transformer, data: Corpus, given: argparse.Namespace) -> dict[str, Any]:
    """One seed by every method."""
    of, found, seconds = task(data, seed, given.device), dict[str, Any](), given.seconds
    for name in [n for n in METHODS if n in given.only]:
        began = time.perf_counter()
        try:
            predict = METHODS[name](base, of, seed, seconds)
            took = time.perf_counter() - began
            seconds = took if name == "ours" else seconds
            p, y = predict(of.test[0]), of.test[1]
            found[name] = {
                "nll": metrics.nll(p, y), "accuracy": metrics.accuracy(p, y),
                "ece": metrics.expected_calibration_error(p, y), "seconds": took,
            }  # fmt: skip
        except Exception as error:  # a rival that fails is a row
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        print(seed, name, found[name], flush=True)
    return {"seed": seed, "methods": found}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard error over the seeds, by method and score."""
    found: dict[str, Any] = {}
    for name in METHODS:
        same = [r["methods"][name] for r in rows if "nll" in r["methods"].get(name, {})]
        if same:
            found[name] = {
                score: [
                    mean(r[score] for r in same),
                    stdev(r[score] for r in same) / math.sqrt(len(same)) if len(same) > 1 else 0.0,
                ]
                for score in ("nll", "accuracy", "ece", "seconds")
            }
    return found


def main() -> None:
    """Writes a row for every seed."""
    parser = study(__doc__, jobs="seeds")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=at_least(1), default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of every method")
    parser.add_argument("--pretraining", type=at_least(1), default=3000, help="steps")
    parser.add_argument("--width", type=at_least(4), default=128)
    parser.add_argument("--depth", type=at_least(1), default=4)
    parser.add_argument("--only", nargs="+", choices=list(METHODS), default=list(METHODS))
    given = parser.parse_args()
    settings = {k: getattr(given, k) for k in ("seconds", "pretraining", "width", "depth")}
    data = corpus(given.text)
    base = pretrained(data, given).cpu()
    work = partial(_on_device, base=base, data=data, given=given)
    results = complete(
        given.out, settings, product(range(given.seeds)), work, by=("seed",), jobs=given.jobs,
        device=given.device, summary=summary,
    )  # fmt: skip
    print(results.get("summary"), flush=True)


def _on_device(
    seed: int, *, base: Transformer, data: Corpus, given: argparse.Namespace
) -> dict[str, Any]:
    return row(seed, base=base.to(given.device), data=data, given=given)


if __name__ == "__main__":
    main()
