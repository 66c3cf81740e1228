"""A dozen networks: transformer, GRU, convolutions and perceptron on three problems each.

    python -m lab.defaults.dozen --jobs 14 --out results/dozen.json

``Langevin(network, likelihood).sample(data)`` with nothing else given, then five networks by Adam,
tuned and stopped early, in the CPU-seconds that it took. ``--variants`` runs ours with one
rule of the recipe changed: which one costs where Adam is ahead.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.command import study
from lab.defaults.home import Problem, adam
from lab.results import complete
from natural_langevin import Langevin, data, likelihoods, metrics, models
from natural_langevin.recipe import rules
from natural_langevin.recipe.settings import Settings

ROWS, TESTED, LENGTH, LETTERS, WIDTH = 2_000, 2_000, 12, 8, 32


class Transformer(nn.Module):
    """One layer of attention over steps, the mean of them named."""

    def __init__(self, inputs: int, length: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(length, WIDTH))
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, inputs) -> (n, classes)."""
        found: Tensor = self.head(self.layer(self.embed(x) + self.place).mean(1))
        return found


class Recurrent(nn.Module):
    """A GRU whose last state is named."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.cell = nn.GRU(inputs, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, inputs) -> (n, classes)."""
        found: Tensor = self.head(self.cell(x)[0][:, -1])
        return found


def convolutions(classes: int) -> nn.Module:
    """Two convolutions of images of 8 x 8."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, classes),
    )  # fmt: skip


def _letters(seed: int, label: Callable[[Any, Any], Any]) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng(seed)
    text = generator.integers(0, LETTERS, (ROWS + TESTED, LENGTH))
    y = label(text, generator)
    return torch.eye(LETTERS)[torch.as_tensor(text)], torch.as_tensor(y)


def _after_marker(text: Any, generator: Any) -> Any:
    """The letter behind the only marker: no noise at all."""
    place = generator.integers(0, LENGTH - 1, len(text))
    text[text == 0] = 1
    text[np.arange(len(text)), place] = 0
    return text[np.arange(len(text)), place + 1] - 1


def _more_often(text: Any, generator: Any) -> Any:
    """Which of three letters is there most often, one label in ten at random."""
    often = np.stack([(text == k).sum(1) for k in range(3)], 1) + 0.1 * np.arange(3)
    y = often.argmax(1)
    random = generator.random(len(y)) < 0.1
    return np.where(random, generator.integers(0, 3, len(y)), y)


def _sequences() -> dict[str, tuple[Tensor, Tensor, int]]:
    found = data.digits()
    x = torch.cat([found.train_x, found.test_x]).reshape(-1, 8, 8).float()
    return {
        "the letter behind a marker": (*_letters(0, _after_marker), LETTERS - 1),
        "the most frequent letter": (*_letters(1, _more_often), 3),
        "digits row by row": (x, torch.cat([found.train_y, found.test_y]), 10),
    }


def _images() -> dict[str, tuple[Tensor, Tensor, int]]:
    generator = np.random.default_rng(2)
    total = ROWS + TESTED
    y = generator.integers(0, 4, total)
    bars = np.zeros((total, 1, 8, 8))
    for n, place in enumerate(generator.integers(0, 8, total)):
        step = np.arange(8)
        rows = [np.full(8, place), step, step, 7 - step][y[n]]
        columns = [step, np.full(8, place), step, step][y[n]]
        bars[n, 0, rows, columns] = 1
    bars = bars + 0.7 * generator.standard_normal(bars.shape)
    spots = generator.standard_normal((total, 1, 8, 8))
    count = generator.integers(0, 4, total)
    for n, k in enumerate(count):
        for place in generator.choice(64, k, replace=False):
            spots[n, 0, place // 8, place % 8] += 4
    digits = _sequences()["digits row by row"]
    return {
        "digits as images": (digits[0][:, None], *digits[1:]),
        "the way a bar lies": (torch.tensor(bars, dtype=torch.float32), torch.tensor(y), 4),
        "how many spots": (torch.tensor(spots, dtype=torch.float32), torch.tensor(count), 4),
    }


def _tables() -> dict[str, tuple[Tensor, Tensor, int]]:
    generator = np.random.default_rng(3)

    def drawn(columns: int, classes: int, sharp: float) -> tuple[Tensor, Tensor, int]:
        x = generator.standard_t(4, (ROWS + TESTED, columns))
        inner = np.tanh(x @ generator.standard_normal((columns, 20)) / np.sqrt(columns))
        logits = sharp * inner @ generator.standard_normal((20, classes))
        y = (logits + generator.gumbel(size=logits.shape)).argmax(1)
        return torch.tensor(x, dtype=torch.float32), torch.tensor(y), classes

    digits = _sequences()["digits row by row"]
    return {
        "18 columns, 7 classes": drawn(18, 7, 4.0),
        "6 columns, 3 classes, noisy": drawn(6, 3, 1.0),
        "digits as pixels": (digits[0].flatten(1), *digits[1:]),
    }


def problem(name: str) -> Problem:
    """By "network: data", see ``NAMES``."""
    kind, _, what = name.partition(": ")
    x, y, classes = {**_sequences(), **_images(), **_tables()}[what]
    makes: dict[str, Callable[[], nn.Module]] = {
        "transformer": lambda: Transformer(x.shape[-1], x.shape[1], classes),
        "GRU": lambda: Recurrent(x.shape[-1], classes),
        "convolutions": lambda: convolutions(classes),
        "perceptron": lambda: models.mlp(x.shape[1], classes, (64, 64)),
    }
    cut = min(ROWS, 2 * len(x) // 3)
    mean, deviation = (x[:cut].mean(0), x[:cut].std(0).clamp_min(1e-2)) if kind == "perceptron" \
        else (x[:cut].mean(), x[:cut].std())  # fmt: skip
    x = (x - mean) / deviation
    return Problem(x[:cut], y[:cut], x[cut:], y[cut:], makes[kind])


NAMES = tuple(
    [f"{kind}: {what}" for kind in ("transformer", "GRU") for what in _sequences()]
    + [f"convolutions: {what}" for what in _images()]
    + [f"perceptron: {what}" for what in _tables()]
)
USUAL = Settings()
KINDS = ("places", "eager")
FURTHER = replace(
    USUAL,
    cost=replace(USUAL.cost, **{k: replace(getattr(USUAL.cost, k), descent=2e11) for k in KINDS}),
)
#: Arguments of ``Langevin`` and, where it has them, of ``sample``.
VARIANTS: dict[str, dict[str, Any]] = {
    "ours": {},
    "downhill further": {"recipe": FURTHER},
    "minibatches of 100": {"sample": {"batch_size": 100}},
    "both": {"recipe": FURTHER, "sample": {"batch_size": 100}},
    "a narrow prior": {"prior": rules.prior(0.2)},
    "a wide prior": {"prior": rules.prior(25.0)},
    "no calibration": {"calibrate": False},
}


def ours(given: Problem, seed: int, *, sample: Any = None, **options: Any) -> dict[str, Any]:
    """Scores and what was chosen."""
    torch.manual_seed(seed)
    began = time.process_time()
    sampler = Langevin(given.network(), likelihoods.Categorical(), seed=seed, **options)
    posterior = sampler.sample((given.x, given.y), progress=False, **(sample or {}))
    took = time.process_time() - began
    plan = posterior.plan
    return scores(posterior.predict(given.x_test, keep_samples=False).mean, given.y_test) | {
        "cpu_seconds": took,
        "steps": posterior.config["steps"],
        "execution": posterior.config["execution"],
        "prior_scale": None if plan is None else plan.prior_scale,
        "step_size": None if plan is None else plan.step_size,
    }


def scores(p: Tensor, y: Tensor) -> dict[str, Any]:
    """NLL with its standard error over rows, accuracy, calibration error."""
    rows = -p[torch.arange(len(y)), y].double().clamp_min(1e-30).log()
    return {
        "nll": float(rows.mean()),
        "error": float(rows.std() / len(rows) ** 0.5),
        "accuracy": metrics.accuracy(p, y),
        "calibration": metrics.expected_calibration_error(p, y),
    }


def run(name: str, variant: str, seed: int, *, until: float) -> dict[str, Any]:
    """One row: ours with what Adam did in its time, or a variant of ours."""
    row: dict[str, Any] = {"problem": name, "variant": variant, "seed": seed}
    given = problem(name)
    try:
        row["ours"] = ours(given, seed, **VARIANTS[variant])
        if variant == "ours":
            print(name, json.dumps(row["ours"]), flush=True)
            left = min(row["ours"]["cpu_seconds"], max(until - time.time(), 10.0))
            row["five Adam networks"] = adam(given, "cpu", left)
    except Exception as error:  # a row of the table: others go on
        row["failed"] = repr(error)
    return row


def main() -> None:
    """The command."""
    parser = study((__doc__ or "").splitlines()[0], jobs="runs")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="Adam ends by then")
    parser.add_argument("--only", nargs="*", default=[""], help="part of their names")
    parser.add_argument("--variants", nargs="*", default=["ours"], choices=list(VARIANTS))
    options = parser.parse_args()
    names = [n for n in NAMES if any(word in n for word in options.only)]
    items = [(n, v, s) for v in options.variants for s in range(options.seeds) for n in names]
    complete(
        options.out, {}, items, partial(run, until=time.time() + options.seconds),
        by=("problem", "variant", "seed"), jobs=options.jobs, seconds=options.seconds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
