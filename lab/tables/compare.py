"""The comparison with what others would use: ``python -m lab.tables.compare``.

Five data sets that scikit-learn ships, several random splits into training and test data. Ours is
``NaturalLangevinClassifier()`` / ``NaturalLangevinRegressor()`` with the defaults; the others are
in ``rivals``. Nothing sees the test part before it is scored. Results are written fit by fit, and
fits that the file holds already are not run again.
"""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split

from lab.results import join_parts
from lab.tables.rivals import (
    FOLDS,
    GRID,
    MOST_EPOCHS,
    RIVALS,
    TREES,
    is_installed,
    run_rival,
)
from lab.tables.table import markdown, with_table
from natural_langevin import metrics
from natural_langevin._internal.atomic import write_output
from natural_langevin.experiments.origin import origin
from natural_langevin.sklearn import NaturalLangevinClassifier, NaturalLangevinRegressor
from natural_langevin.sklearn.frames import Array
from natural_langevin.tabular import weighing
from natural_langevin.tabular.predictive import Predictive
from natural_langevin.tabular.settings import Settings

log = logging.getLogger("natural_langevin")

DATASETS = ("iris", "wine", "breast_cancer", "diabetes", "digits")
SPLITS, TEST_PART = 20, 0.3
#: Levels of the central intervals whose coverage is the calibration of a regression.
LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))
METHODS = ("ours", *RIVALS)
#: scikit-learn's Gaussian process takes minutes for a split of the digits.
LEFT_OUT = {("digits", "process")}

Scored = dict[str, Any]


def load(name: str, split: int) -> tuple[Array, Array, Array, Array]:
    """X_train, X_test, y_train, y_test of one split; classes in proportion."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    labels = None if name == "diabetes" else y
    parts = train_test_split(X, y, test_size=TEST_PART, random_state=split, stratify=labels)
    return parts[0], parts[1], parts[2], parts[3]


def ours(name: str, X: Array, y: Array, split: int) -> Any:
    """Our estimator at its defaults, fitted."""
    kind = NaturalLangevinRegressor if name == "diabetes" else NaturalLangevinClassifier
    return kind(random_state=split).fit(X, y)


def classification_scores(probabilities: Array, y: Array) -> Scored:
    """NLL, accuracy and calibration error of probabilities (N, K)."""
    p, labels = torch.as_tensor(probabilities), torch.as_tensor(y)
    return {
        "nll": metrics.nll(p, labels),
        "accuracy": metrics.accuracy(p, labels),
        "calibration": metrics.expected_calibration_error(p, labels),
    }


def regression_scores(predicted: Predictive, y: Array) -> Scored:
    """Of predictive distributions of one number for every row."""
    inside = np.abs(2 * predicted.cdf(y) - 1)  # the central level that y lies on
    gaps = [abs(float((inside <= level).mean()) - level) for level in LEVELS]
    return {
        "nll": -float(predicted.log_prob(y).mean()),
        "rmse": metrics.rmse(torch.as_tensor(predicted.mean), torch.as_tensor(y)),
        "calibration": float(np.mean(gaps)),
        "coverage_90": float((inside <= 0.9).mean()),
    }


def run(name: str, method: str, split: int, budget: float) -> Scored:
    """One fit, scored. ``budget``: CPU seconds that ours took on this split."""
    X, X_test, y, y_test = load(name, split)
    numbers, start, chosen = name == "diabetes", time.process_time(), ""
    said: Any
    if method == "ours":
        model = ours(name, X, y, split)
        said = model.predict_dist(X_test) if numbers else model.predict_proba(X_test)
        chosen = model.reason_
    else:
        said = run_rival(method, X, y, X_test, numbers, split, budget)
    seconds = time.process_time() - start
    score: Any = regression_scores if numbers else classification_scores
    return {
        "dataset": name,
        "method": method,
        "split": split,
        "scores": score(said, y_test),
        "cpu_seconds": seconds,
        "chosen": chosen,
    }


def configuration() -> dict[str, Any]:
    """All settings that the figures depend on."""
    defaults = Settings()
    return {
        "ours": NaturalLangevinClassifier().get_params(),
        "cross_validation": {
            "most_held_out": defaults.held_out,
            "draws": defaults.draws,
            "updates": weighing.UPDATES,
            "least_weight": weighing.LEAST_WEIGHT,
            "deviation": weighing.DEVIATION,
        },
        "mlp": {"grid": GRID, "folds": FOLDS, "max_iter": MOST_EPOCHS},
        "forest": {"trees": TREES},
        "test_part": TEST_PART,
        "levels": LEVELS,
    }


def main() -> None:
    """Runs the methods that are missing in the results, and writes after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/tabular.json"))
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--page", type=Path, help="a page whose table is to be replaced")
    parser.add_argument("--splits", type=int, default=SPLITS, help="the first so many")
    parser.add_argument("--split", type=int, nargs="+", help="these alone, counted from 0")
    parser.add_argument("--merge", type=Path, help="a folder: run nothing, join its files")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if options.merge is not None:
        results = merge(options.merge)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    else:
        results = go_on(options, parser)
    print(markdown(results))
    if options.page is not None:
        text = options.page.read_text(encoding="utf-8")
        options.page.write_text(with_table(text, results), encoding="utf-8")


def merge(folder: Path) -> Scored:
    """The files of several processes as one, in the order that one process would write."""
    methods = list(METHODS)
    return join_parts(
        folder,
        same=("config",),
        place=lambda row: (
            row["split"], DATASETS.index(row["dataset"]), methods.index(row["method"])
        ),
    )  # fmt: skip


def go_on(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Scored:
    """The content of ``--out``, to which every fit is added as soon as it is done."""
    results: Scored = {"rows": []}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.out.exists():
        results = json.loads(options.out.read_text())
        if results["config"] != json.loads(json.dumps(configuration())):
            parser.error(f"{options.out} holds another configuration: give another --out")
    done = {(row["dataset"], row["method"], row["split"]): row for row in results["rows"]}
    methods = [method for method in METHODS if is_installed(method)]
    for method in set(METHODS) - set(methods):
        log.info("%s is not installed, and left out", method)
    wanted = [
        (name, method, split)
        for split in options.split or range(options.splits)
        for name in options.datasets
        for method in methods
        if (name, method) not in LEFT_OUT
    ]
    for name, method, split in (one for one in wanted if one not in done):
        budget = 0.0 if method == "ours" else done[name, "ours", split]["cpu_seconds"]
        row = done[name, method, split] = run(name, method, split, budget)
        log.info("%s %s split %d: %s", name, method, split, row["scores"])
        results |= {"config": configuration()} | origin("cpu")
        results["versions"]["scikit-learn"] = sklearn.__version__
        results["rows"].append(row)
        write_output(options.out, json.dumps(results, indent=1).encode() + b"\n")
    return results


if __name__ == "__main__":
    main()
