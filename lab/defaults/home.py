"""Pure defaults on problems of the usual size of today: images, word counts, one-hot tables.

    python -m lab.defaults.home --out results/home-cpu.json [--only words] [--seconds 30]

``Langevin(network, likelihood).sample(data)`` and what people would use instead, on the same rows:
a linear model, five Adam networks with early stopping in the same time, and the paper's constants
(QDOP, N(0, 0.1), step size 1e-3). Every row is kept when it is done. Fashion-MNIST is left out
where it cannot be had.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lab.command import Heard
from lab.defaults import record
from natural_langevin import Langevin, Posterior, data, likelihoods, metrics, models

#: Rows of generated problems that are tested on, and the constants of the paper's row.
TESTED, STEP_SIZE, CHAINS = 5_000, 1e-3, 4
ADAM_RATES, DECAYS, BATCH, MEMBERS = (1e-2, 1e-3), (1e-4, 1e-3, 1e-2), 100, 5


class Problem(NamedTuple):
    """Training and test rows, and the network."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    network: Callable[[], nn.Module]

    def to(self, device: str) -> Problem:
        """The same on a device."""
        return Problem(*(t.to(device) for t in self[:4]), self.network)


def _images(name: str, network: Callable[[], nn.Module], count: int = 60_000) -> Problem:
    found = data.load(name)
    rows = (found.train_x[:count], found.train_y[:count], found.test_x, found.test_y)
    return Problem(*rows, network)


def convolutions() -> nn.Module:
    """Two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def words(count: int = 5_000, vocabulary: int = 2_000, topics: int = 4, seed: int = 3) -> Problem:
    """Counts of words in documents of a few topics each; the class is the one they have most of."""
    generator, total = np.random.default_rng(seed), count + TESTED
    usual = 1 / np.arange(1, vocabulary + 1) ** 0.9
    share = usual * np.exp(0.45 * generator.standard_normal((topics, vocabulary)))
    share /= share.sum(1, keepdims=True)
    y = generator.integers(0, topics, total)
    mixed = 0.55 * generator.dirichlet(np.full(topics, 0.6), total)
    mixed[np.arange(total), y] += 0.45
    lengths = generator.poisson(60, total) + 5
    x = [generator.multinomial(n, m @ share) for n, m in zip(lengths, mixed, strict=True)]
    return _parted(np.stack(x), y, count, lambda: models.mlp(vocabulary, topics, (50,)))


def one_hot(count: int = 20_000, columns: int = 12, levels: int = 25, seed: int = 4) -> Problem:
    """Categorical columns with rare levels; effects of single levels, and of one pair."""
    generator, total = np.random.default_rng(seed), count + TESTED
    chance = 1 / np.arange(1, levels + 1) ** 1.2
    drawn = generator.choice(levels, (total, columns), p=chance / chance.sum())
    x = np.zeros((total, columns * levels))
    for column in range(columns):
        x[np.arange(total), column * levels + drawn[:, column]] = 1
    logits = x @ (0.6 * generator.standard_normal((columns * levels, 3)))
    logits[:, 0] += 1.2 * ((drawn[:, 0] < 2) & (drawn[:, 1] > 2))
    y = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    return _parted(x, y, count, lambda: models.mlp(columns * levels, 3, (50,)))


def skewed(count: int = 45_000, seed: int = 5) -> Problem:
    """Amounts over many orders of size beside ordinary columns, and a rare class."""
    generator, total = np.random.default_rng(seed), count + TESTED
    amounts, plain = generator.lognormal(0, 1.5, (total, 6)), generator.standard_normal((total, 6))
    logit = (
        0.8 * np.log1p(amounts[:, 0]) - 0.5 * np.log1p(amounts[:, 1]) + 0.7 * plain[:, 0]
        + 0.6 * plain[:, 1] * plain[:, 2] + 0.3 * plain[:, 3] - 3.2
    )  # fmt: skip
    y = (generator.random(total) < 1 / (1 + np.exp(-logit))).astype(int)
    x = np.concatenate([amounts * np.array([1, 10, 100, 1000, 0.01, 1]), plain], 1)
    return _parted(x, y, count, lambda: models.mlp(12, 2, (50,)))


class Embedded(nn.Module):
    """Numbers of levels, looked up column by column, before a perceptron."""

    def __init__(self, columns: int, levels: int, classes: int) -> None:
        super().__init__()
        self.levels = nn.Embedding(levels, 8)
        self.head = models.mlp(8 * columns, classes, (64,))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of rows of levels."""
        found: Tensor = self.head(self.levels(x.long()).flatten(1))
        return found


def embeddings(count: int = 20_000, columns: int = 6, levels: int = 500, seed: int = 6) -> Problem:
    """Columns of many levels, most of them seen a few times; two hidden traits of every level."""
    generator, total = np.random.default_rng(seed), count + TESTED
    chance = 1 / np.arange(1, levels + 1) ** 0.7
    x = generator.choice(levels, (total, columns), p=chance / chance.sum())
    traits = generator.standard_normal((levels, 2))[x]
    logits = np.stack([traits[..., 0].sum(1), traits[..., 1].sum(1), traits.prod(-1).sum(1)], 1)
    y = (0.8 * logits + generator.gumbel(size=logits.shape)).argmax(1)
    return _parted(x, y, count, lambda: Embedded(columns, levels, 3))


class Characters(nn.Module):
    """A small transformer that names the next character."""

    def __init__(self, letters: int, length: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of windows of characters."""
        found: Tensor = self.head(self.layers(self.letters(x.long()) + self.place)[:, -1])
        return found


def characters(count: int = 20_000, letters: int = 20, length: int = 12, seed: int = 7) -> Problem:
    """Windows of a text in which the next letter follows from the last one and the one at a
    distance that the last one names; its entropy is about .8 nat."""
    generator = np.random.default_rng(seed)
    total = count + TESTED
    logits = 1.5 * generator.standard_normal((letters, letters, letters))
    cumulated = np.exp(logits)
    cumulated = (cumulated / cumulated.sum(-1, keepdims=True)).cumsum(-1)
    text = list(generator.integers(0, letters, length))
    for drawn in generator.random(total + length):
        last = text[-1]
        text.append(min(int((cumulated[last, text[-2 - last % 4]] < drawn).sum()), letters - 1))
    windows = np.lib.stride_tricks.sliding_window_view(np.array(text), length + 1)[:total]
    windows = windows[generator.permutation(total)]
    return _parted(windows[:, :-1], windows[:, -1], count, lambda: Characters(letters, length))


def many(count: int = 1_000_000, columns: int = 20, seed: int = 8) -> Problem:
    """A million rows of three classes."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((count + TESTED, columns)).astype("float32")
    inner = np.tanh(x @ generator.standard_normal((columns, 30)) / 2)
    logits = inner @ generator.standard_normal((30, 3))
    y = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    return _parted(x, y, count, lambda: models.mlp(columns, 3, (64, 64)))


def small_digits() -> Problem:
    """Images of 8 x 8 and a small convolutional network."""
    found = data.digits()
    network = lambda: nn.Sequential(  # noqa: E731
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10),
    )  # fmt: skip
    return Problem(found.train_x, found.train_y, found.test_x, found.test_y, network)


def _parted(x: Any, y: Any, count: int, network: Callable[[], nn.Module]) -> Problem:
    rows, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    return Problem(rows[:count], labels[:count], rows[count:], labels[count:], network)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "MNIST, 784-100-100-10, 20,000": lambda: _images(
        "mnist", lambda: models.mlp(784, 10, (100, 100)), 20_000
    ),
    "word counts, 2000-50-4": words,
    "one-hot, 300-50-3": one_hot,
    "skewed, 12-50-2": skewed,
    "digits, two convolutions": small_digits,
    "embeddings, 6 columns of 500 levels": embeddings,
    "characters, transformer 2 x 64": characters,
    "a million rows, 20-64-64-3": many,
    "MNIST, 784-400-400-10": lambda: _images("mnist", lambda: models.mlp(784, 10, (400, 400))),
    "MNIST, two convolutions": lambda: _images("mnist", convolutions),
    "Fashion-MNIST, 784-400-400-10": lambda: _images(
        "fashion-mnist", lambda: models.mlp(784, 10, (400, 400))
    ),
    "MNIST, 784-2000-2000-2000-10": lambda: _images(
        "mnist", lambda: models.mlp(784, 10, (2000, 2000, 2000))
    ),
}


def ours(problem: Problem, device: str, seed: int, seconds: float | None) -> dict[str, Any]:
    """By pure defaults, or with ``seconds`` alone."""
    began = time.monotonic()
    with Heard() as heard:
        sampler = Langevin(problem.network(), likelihoods.Categorical(), seed=seed, device=device)
        posterior = sampler.sample((problem.x, problem.y), seconds=seconds, progress=False)
        taken = time.monotonic() - began
    trouble = sum("exploded" in text or "non-finite" in text for text in heard.messages)
    began = time.monotonic()
    found = _scores(posterior.predict(problem.x_test, keep_samples=False).mean, problem.y_test)
    return found | {
        "seconds": taken, "predicting": time.monotonic() - began, "trouble": trouble,
        "steps": posterior.config["steps"], "batch_size": posterior.config["batch_size"],
        "execution": posterior.config["execution"],
    }  # fmt: skip


def paper(problem: Problem, device: str, seed: int, steps: int) -> dict[str, Any]:
    """The paper's constants, with as many chains as the defaults have."""
    began = time.monotonic()
    sampler = Langevin(
        problem.network(), likelihoods.Categorical(), step_size=STEP_SIZE, chains=CHAINS,
        init="fan_in", seed=seed, device=device,
    )  # fmt: skip
    posterior: Posterior = sampler.sample(
        (problem.x, problem.y), steps, batch_size=BATCH, burn_in=steps // 3,
        thin=max(1, steps // 150), progress=False,
    )  # fmt: skip
    mean = posterior.predict(problem.x_test, keep_samples=False).mean
    return _scores(mean, problem.y_test) | {"seconds": time.monotonic() - began, "steps": steps}


def linear(problem: Problem) -> dict[str, Any]:
    """Logistic regression by full-batch L-BFGS, its decay chosen on a fifth of the rows."""
    x, x_test = problem.x, problem.x_test
    if float(x.abs().max()) > 50:
        mean, sd = x.mean(0), x.std(0).clamp_min(1e-3)
        x, x_test = (x - mean) / sd, (x_test - mean) / sd
    cut, began = len(x) * 4 // 5, time.monotonic()
    classes = int(problem.y.max()) + 1
    scored = {
        decay: _logistic(x[:cut], problem.y[:cut], decay, classes)(x[cut:])
        for decay in (1e-4, 1e-3, 1e-2)
    }
    best = min(scored, key=lambda d: metrics.nll(scored[d].softmax(-1), problem.y[cut:]))
    outputs = _logistic(x, problem.y, best, classes)(x_test)
    found = _scores(outputs.softmax(-1), problem.y_test)
    return found | {"seconds": time.monotonic() - began, "decay": best}


def _logistic(x: Tensor, y: Tensor, decay: float, classes: int) -> Callable[[Tensor], Tensor]:
    layer = nn.Linear(x.shape[1], classes, device=x.device)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(layer(x), y) + decay * layer.weight.square().sum() / 2
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]

    def outputs(rows: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = layer(rows)
            return found

    return outputs


def adam(problem: Problem, device: str, seconds: float) -> dict[str, Any]:
    """Five networks, stopped where a fifth of the rows is predicted best; tuned and trained in
    ``seconds`` together."""
    began, share = time.monotonic(), seconds / (MEMBERS + len(ADAM_RATES) * len(DECAYS) - 1)
    tried = {
        (rate, decay): _adam(problem, device, rate, decay, 0, share)
        for rate in ADAM_RATES for decay in DECAYS
    }  # fmt: skip
    (rate, decay), first = min(tried.items(), key=lambda item: item[1][0])
    members = [first] + [_adam(problem, device, rate, decay, s, share) for s in range(1, MEMBERS)]
    mean = torch.stack([p for _, p in members]).mean(0)
    return _scores(mean, problem.y_test) | {
        "seconds": time.monotonic() - began, "rate": rate, "decay": decay
    }  # fmt: skip


def _adam(
    problem: Problem, device: str, rate: float, decay: float, seed: int, seconds: float
) -> tuple[float, Tensor]:
    """The lowest held-out NLL, and what was predicted for the test rows there."""
    torch.manual_seed(seed)
    network, cut = problem.network().to(device), len(problem.x) * 4 // 5
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
    best, kept, began = math.inf, torch.empty(0), time.monotonic()
    while time.monotonic() - began < seconds:
        for rows in torch.randperm(cut, device=device).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(problem.x[rows]), problem.y[rows]).backward()
            optimizer.step()
            if time.monotonic() - began > seconds:
                break
        with torch.no_grad():
            found = float(nn.functional.cross_entropy(network(problem.x[cut:]), problem.y[cut:]))
            if found < best:
                best, kept = found, network(problem.x_test).softmax(-1)
    return best, kept


def _scores(p: Tensor, y: Tensor) -> dict[str, float]:
    return {
        "nll": metrics.nll(p, y),
        "accuracy": 100 * metrics.accuracy(p, y),
        "calibration_error": metrics.expected_calibration_error(p, y),
    }


def run(name: str, device: str, seeds: int, seconds: float | None) -> dict[str, Any]:
    """All methods on one problem."""
    problem = PROBLEMS[name]().to(device)
    runs = [ours(problem, device, seed, seconds) for seed in range(seeds)]
    time_of_ours = max(r["seconds"] for r in runs)
    return {
        "rows": len(problem.x),
        "asked": {} if seconds is None else {"seconds": seconds},
        "defaults": runs,
        "linear": linear(problem),
        "five Adam networks": adam(problem, device, time_of_ours),
        "paper's constants": paper(problem, device, 0, 60_000 if device != "cpu" else 6_000),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m lab.defaults.home", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS), help="part of their names")
    chosen = parser.parse_args()
    for name in PROBLEMS:
        if not any(word in name for word in chosen.only):
            continue
        try:
            row = run(name, chosen.device, chosen.seeds, chosen.seconds)
        except data.DataUnavailableError as error:
            print(f"{name}: left out: {error}")
            continue
        asked = "" if chosen.seconds is None else f", seconds={chosen.seconds:g}"
        record.keep(chosen.out, "home", name + asked, row, device=chosen.device)
        shown = {
            k: round(v["nll"], 4) for k, v in row.items() if isinstance(v, dict) and "nll" in v
        }
        print(name + asked, [round(r["nll"], 4) for r in row["defaults"]], shown, flush=True)


if __name__ == "__main__":
    main()
