"""A complete, made-up results.json: the paper's table plus noise, the same on every machine."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from natural_langevin.cli.pages import charts

PAPER = {  # train NLL, train accuracy, test NLL, test accuracy: the paper's Table 1
    ("sgd", "point", "SGD"): (0.0003, 100.00, 0.0584, 98.24),
    ("dropout", "point", "Dropout"): (0.0006, 100.00, 0.0519, 98.61),
    ("euclidean", "ensemble", "Ensemble, Euclidean"): (0.0357, 99.63, 0.0726, 98.10),
    ("rmsprop", "ensemble", "Ensemble, RMSProp"): (0.0415, 99.47, 0.0742, 98.17),
    ("dop", "ensemble", "Ensemble, DOP"): (0.0292, 99.69, 0.0660, 98.13),
    ("qdop", "ensemble", "Ensemble, QDOP"): (0.0229, 99.85, 0.0591, 98.38),
    ("euclidean", "mean", "PostMean, Euclidean"): (0.0281, 99.12, 0.1240, 97.16),
    ("rmsprop", "mean", "PostMean, RMSProp"): (0.0299, 99.07, 0.1134, 97.21),
    ("dop", "mean", "PostMean, DOP"): (0.0243, 99.20, 0.1389, 97.20),
    ("qdop", "mean", "PostMean, QDOP"): (0.0292, 99.60, 0.3429, 98.14),
}
NAMES = {"euclidean": "Euclidean", "rmsprop": "RMSProp", "dop": "DOP", "qdop": "QDOP"}
COST = {"sgd": 1.0, "dropout": 1.07, "euclidean": 1.31, "rmsprop": 1.52, "dop": 1.61, "qdop": 1.94}

FACTOR = {"sgd": 1.1, "dropout": 1.0, "euclidean": 0.96, "rmsprop": 1.02, "dop": 0.93, "qdop": 0.9}


@pytest.fixture(autouse=True, scope="module")
def drawings() -> Iterator[dict[str, Any]]:
    """What was drawn, by its numbers and words: most tests change the table and leave the charts,
    on which matplotlib would spend nearly all of their time. ``clear`` it to have them drawn."""
    kept: dict[str, Any] = {}

    def once(draw: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(*given: Any, **words: Any) -> Any:
            key = repr((draw.__name__, given, words))
            if key not in kept:
                kept[key] = draw(*given, **words)
            return kept[key]

        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "_lines", once(charts._lines))
        patch.setattr(charts, "_diagram", once(charts._diagram))
        yield kept


@pytest.fixture
def results() -> dict[str, Any]:
    """A fresh copy, as json.loads would give it, for a test to spoil."""
    copy: dict[str, Any] = json.loads(json.dumps(example()))
    return copy


@pytest.fixture
def page() -> dict[str, Any]:
    """A complete, made-up page of a saved posterior."""
    return {
        "title": "kind, from flowers.csv",
        "byline": "classification · 97 training rows · natural-langevin 0.1.0",
        "command": "natural-langevin report runs/flowers",
        "about": {"Data": {"source": "flowers.csv", "training rows": 97}, "Settings": {"seed": 0}},
        "quality": {
            "format": 1,
            "version": "0.1.0",
            "data": "held-out rows of flowers.csv",
            "rows": 23,
            "task": "classification",
            "scores": {"accuracy": 0.875, "nll": 0.3125, "brier": 0.21875, "ece": 0.0625},
            "baseline": {"accuracy": 0.375, "nll": 1.09},
            "reliability": {"confidence": [0.55, 0.95], "accuracy": [0.5, 1.0], "count": [6, 17]},
            "uncertainty": {
                "label": "entropy, nats",
                "high": 1.0986,
                "total": [10, 9, 4],
                "epistemic": [23, 0, 0],
            },
            "trace": {
                "step": [50, 100, 150], "loss": [[0.9, 0.5, 0.4], [0.8, None, 0.3]],
            },
            "diagnosis": {"summary": "2 chains of 50 draws.", "verdicts": ["The chains disagree."]},
        },
    }  # fmt: skip


def example() -> dict[str, Any]:
    rng = random.Random(7)
    return {
        "format": 1,
        "version": "0.1.0",
        "created": "2026-11-15T02:00:00Z",
        "commit": "b335c48d1f0a",
        "machine": {"cpu": "Example Processor 9000", "cores": 16, "device": "NVIDIA H200"},
        "versions": {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.3.1"},
        "config": {
            "dataset": "mnist",
            "name": "quick",
            "steps": 60000,
            "batch_size": 100,
            "seeds": [0, 1, 2],
            "burn_in": 500,
            "thin": 100,
            "grid": {"step_size": [1e-4, 1e-3, 1e-2, 1e-1], "prior_variance": [0.01, 0.1, 1.0]},
        },
        "deviations": [
            "The validation grid is run for 10,000 updates instead of 60,000.",
            "Biases start at zero; the code of the authors draws them from N(0, 1).",
        ],
        "total_seconds": 7984.2,
        "rows": _rows(rng),
        "selection": [_dropout_rates(), *(_selection(rng, method) for method in NAMES)],
        "curves": [_curve(rng, method) for method in ("sgd", "dropout", *NAMES)],
        "reliability": [
            _reliability(rng, method, estimate, label)
            for method, estimate, label in PAPER
            if estimate == "ensemble" or method == "dropout"
        ],
        "ensemble_size": [
            {
                "method": m,
                "label": name,
                "size": sizes,
                "nll": [0.05 + 0.004 * i + 0.06 / k for k in sizes],
            }
            for i, (m, name) in enumerate(reversed(NAMES.items()))
            for sizes in [[1, 2, 5, 10, 20, 50, 100, 200, 400, 595]]
        ],
        "ess": [
            {"method": m, "label": name, "draws": 595, "ess": 41.7 * (i + 1) ** 1.4}
            for i, (m, name) in enumerate(NAMES.items())
        ],
        "uncertain": [_digit(rng, index) for index in (247, 321, 1039, 2597, 4740, 9729)],
    }


def _spread(rng: random.Random, centre: float, scale: float) -> dict[str, Any]:
    values = [centre + rng.gauss(0, scale) for _ in range(3)]
    mean = sum(values) / 3
    return {
        "mean": mean,
        "std": math.sqrt(sum((v - mean) ** 2 for v in values) / 2),
        "values": values,
    }


def _scores(rng: random.Random, nll: float, accuracy: float) -> dict[str, Any]:
    return {
        "nll": _spread(rng, nll, 0.012 * nll),
        "accuracy": _spread(rng, accuracy, 0.04),
        "brier": _spread(rng, 0.015 + 0.12 * nll, 0.0004),
        "ece": _spread(rng, 0.004 + 0.03 * nll, 0.0003),
    }


def _rows(rng: random.Random) -> list[dict[str, Any]]:
    rows = []
    for (method, estimate, label), (l_train, a_train, l_test, a_test) in PAPER.items():
        langevin = estimate != "point"
        rows.append(
            {
                "method": method,
                "estimate": estimate,
                "label": label,
                "group": "paper",
                "note": "Drop probability 0.5 in the hidden layers."
                if method == "dropout"
                else None,
                "settings": {"step_size": 1e-3, "prior_variance": 0.1, "temperature": 1.0}
                if langevin
                else {"step_size": 0.1},
                "train": _scores(rng, l_train, a_train - 0.05),
                "test": _scores(rng, l_test * FACTOR[method], a_test),
                "seconds": _spread(rng, 280 * COST[method], 3.0),
                "cost": COST[method],
                "paper": {
                    "train": {"nll": l_train, "accuracy": a_train},
                    "test": {"nll": l_test, "accuracy": a_test},
                },
            }
        )
    rows.append(
        {
            "method": "qdop",
            "estimate": "pooled",
            "label": "Twelve pooled chains, QDOP",
            "group": "extra",
            "note": "Twelve chains from different starting points, all draws averaged.",
            "settings": {
                "step_size": 2.6e-3,
                "prior_variance": 0.1,
                "temperature": 1.0,
                "chains": 12,
            },
            "train": _scores(rng, 0.0201, 99.9),
            "test": _scores(rng, 0.0505, 98.48),
            "seconds": None,
            "cost": None,
            "paper": None,
        }
    )
    return rows


def _dropout_rates() -> dict[str, Any]:
    """Dropout has no prior: its grid says what its columns are."""
    return {
        "method": "dropout",
        "label": "Dropout",
        "step_sizes": [0.01, 0.1],
        "prior_variances": [0.2, 0.35, 0.5],
        "columns": "dropout rate",
        "accuracy": [[97.9, 97.8, 97.5], [98.5, 98.6, 98.6]],
        "nll": [[0.071, 0.074, 0.081], [0.055, 0.053, 0.052]],
        "chosen": {"step_size": 0.1, "dropout_rate": 0.5},
    }


def _selection(rng: random.Random, method: str) -> dict[str, Any]:
    steps, variances = [1e-4, 1e-3, 1e-2, 1e-1], [0.01, 0.1, 1.0]
    accuracy: list[list[float | None]] = [
        [98.4 - 1.6 * abs(i - 1) - 0.7 * abs(j - 1) - rng.random() for j in range(3)]
        for i in range(4)
    ]
    accuracy[3] = [None, None, 71.2] if method != "euclidean" else [93.1, None, 88.4]
    nll = [[None if a is None else 0.05 + (98.6 - a) / 30 for a in row] for row in accuracy]
    return {
        "method": method,
        "label": NAMES[method],
        "step_sizes": steps,
        "prior_variances": variances,
        "accuracy": accuracy,
        "nll": nll,
        "chosen": {"step_size": 1e-3, "prior_variance": 0.1},
    }


def _curve(rng: random.Random, method: str) -> dict[str, Any]:
    floor = {"sgd": 0.0004, "dropout": 0.03, "euclidean": 0.05, "rmsprop": 0.06}.get(method, 0.025)
    steps = list(range(0, 60001, 100))
    decay = [2.3 * math.exp(-t / 900) + 0.3 * math.exp(-t / (4000 + 9000 * floor)) for t in steps]
    loss = [(d + floor) * math.exp(rng.gauss(0, 0.25)) for d in decay]
    label = {"sgd": "SGD", "dropout": "Dropout"}.get(method) or NAMES[method]
    return {"method": method, "label": label, "step": steps, "loss": loss}


def _reliability(rng: random.Random, method: str, estimate: str, label: str) -> dict[str, Any]:
    centres = [(i + 0.5) / 15 for i in range(15)]
    count = [0, 0] + [int(1.5 + 6660 * math.exp(-1.1 * (14 - i))) for i in range(2, 15)]
    lean = 0.05 if estimate == "ensemble" else -0.08
    accuracy = [
        min(
            1.0, max(0.0, c + lean * math.sin(math.pi * c) + rng.gauss(0, 0.12 / math.sqrt(n or 1)))
        )
        if n
        else None
        for c, n in zip(centres, count, strict=True)
    ]
    return {
        "method": method,
        "estimate": estimate,
        "label": label,
        "confidence": [c if n else None for c, n in zip(centres, count, strict=True)],
        "accuracy": accuracy,
        "count": count,
    }


def _digit(rng: random.Random, index: int) -> dict[str, Any]:
    """Something between a 4 and a 9: a loop that may stay open, and a stem."""
    opening, tilt = rng.uniform(0.2, 1.6), rng.uniform(-0.12, 0.12)

    def ink(x: int, y: int) -> int:
        u, v = (x - 13 + tilt * (y - 14)) / 5.2, (y - 9.5) / 5.0
        loop = abs(math.hypot(u, v) - 1) * 4.5
        if abs(math.atan2(v, u) + math.pi / 2) < opening / 2:
            loop = 9.0
        stem = abs(x - 18 + tilt * (y - 14)) if 5 < y < 24 else 9.0
        return round(255 * max(0.0, min(1.0, 2.1 - min(loop, stem))))

    weights = [rng.random() ** 3 * 0.2 for _ in range(10)]
    weights[4], weights[9] = rng.uniform(0.4, 0.9), rng.uniform(0.4, 0.9)
    p = [w / sum(weights) for w in weights]
    total = -sum(q * math.log(q) for q in p)
    return {
        "index": index,
        "width": 28,
        "height": 28,
        "pixels": [ink(x, y) for y in range(28) for x in range(28)],
        "label": rng.choice([4, 9]),
        "probabilities": p,
        "total": total,
        "epistemic": total * rng.uniform(0.2, 0.5),
    }
