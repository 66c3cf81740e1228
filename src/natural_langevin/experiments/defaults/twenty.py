"""Twenty problems on which no default was chosen: tables, generated ones, digits as pixels and as
images. Inputs and targets that are numbers are standardised by their training rows.

``python -m natural_langevin.experiments.defaults.twenty``: pure defaults against ``rivals``, test
NLL and calibration error, seconds beside; every problem is kept when it is done, and any number of
processes may share the file. With ``--ours`` the rivals' figures of the file stay, and ours are run
again (``--only`` some).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, models
from natural_langevin._internal.pages import markdown
from natural_langevin.experiments.defaults import record, rivals
from natural_langevin.experiments.uci.data import TABLES, load, split
from natural_langevin.metrics import expected_calibration_error
from natural_langevin.sampling.interrupts import whole_runs

MOST = 1000
#: Problems of which the recipe has seen something: see the page.
SEEN = {"uci boston", "uci concrete", "digits", "digits as images"}
#: How often test targets are drawn from predictions, to see what calibrated ones would score.
DRAWN = 500
PART = "twenty"
#: What a row keeps of the rivals: test NLL of three, how they were set and what it took.
RIVALS = ("Adam, early stopping", "five networks", "MC-dropout", "settings", "rivals_cpu_seconds")


class Problem(NamedTuple):
    """Standardised training and test rows, and the network for a rate of dropout and a seed."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    make: rivals.Make


def _standardised(x: Tensor, reference: Tensor) -> Tensor:
    sd = reference.std(0)
    return (x - reference.mean(0)) / torch.where(sd > 0, sd, 1.0)


def _problem(x: Any, y: Any, x_test: Any, y_test: Any, *, image: bool = False) -> Problem:
    x, x_test = (torch.as_tensor(np.asarray(v), dtype=torch.float32)[:MOST] for v in (x, x_test))
    y, y_test = (torch.as_tensor(np.asarray(v))[:MOST] for v in (y, y_test))
    x, x_test = _standardised(x, x), _standardised(x_test, x)
    outputs = int(y.max()) + 1
    if y.is_floating_point():
        y, y_test = y.float()[:, None], y_test.float()[:, None]
        y, y_test, outputs = _standardised(y, y), _standardised(y_test, y), 1
    if image:
        x, x_test = x.reshape(-1, 1, 8, 8), x_test.reshape(-1, 1, 8, 8)

    def make(dropout: float, seed: int) -> nn.Module:
        if image:
            torch.manual_seed(seed)
            drop = [nn.Dropout(dropout)] if dropout else []
            return nn.Sequential(
                nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), *drop,
                nn.Linear(72, outputs),
            )  # fmt: skip
        return models.mlp(x.shape[1], outputs, (50,), dropout=dropout, seed=seed)

    return Problem(x, y, x_test, y_test, make)


def _halves(x: Any, y: Any, *, image: bool = False) -> Problem:
    order = np.random.default_rng(0).permutation(len(x))
    cut = min(MOST, 2 * len(x) // 3)
    a, b = order[:cut], order[cut:]
    return _problem(x[a], y[a], x[b], y[b], image=image)


def _loaded(function: Callable[..., Any], **options: Any) -> Problem:
    return _halves(*function(**options))


def _uci(name: str) -> Problem:
    x, y, x_test, y_test = split(load(name), 0)
    some = np.random.default_rng(0).permutation(len(x))[:MOST]
    return _problem(x[some], y[some].astype("f4"), x_test, y_test.astype("f4"))


def problems() -> Iterator[tuple[str, Callable[[], Problem]]]:
    """Name and how to make it."""
    from sklearn import datasets  # for developers

    for name in ("iris", "wine", "breast_cancer", "digits", "diabetes"):
        yield name, partial(_loaded, getattr(datasets, f"load_{name}"), return_X_y=True)
    yield (
        "digits as images",
        lambda: _halves(*datasets.load_digits(return_X_y=True), image=True),
    )
    for name in TABLES:
        yield f"uci {name}", partial(_uci, name)
    made: dict[str, Callable[[], Any]] = {
        "friedman 1": lambda: datasets.make_friedman1(1500, noise=1.0, random_state=0),
        "friedman 2": lambda: datasets.make_friedman2(900, noise=50.0, random_state=0),
        "circles": lambda: datasets.make_circles(600, noise=0.2, factor=0.5, random_state=0),
        "quantiles": lambda: datasets.make_gaussian_quantiles(
            n_samples=900, n_features=5, n_classes=3, random_state=0
        ),
        "classification": lambda: datasets.make_classification(
            1200, 15, n_informative=6, n_classes=3, flip_y=0.1, random_state=0
        ),
    }
    for name, function in made.items():
        yield name, partial(_loaded, function)


def _calibration_error(scores: Any) -> float:
    """Of classes as usual; of numbers, the mean distance of intervals' coverage from its level."""
    if hasattr(scores, "calibration_error"):
        return float(scores.calibration_error)
    return _distance(scores.coverage)


def _distance(coverage: dict[float, float]) -> float:
    return float(np.mean([abs(found - level) for level, found in coverage.items()]))


def _if_calibrated(posterior: Posterior, problem: Problem, scores: Any) -> float:
    """The error that is expected of these very predictions if they are right: targets are drawn
    from them, as many as there are test rows, ``DRAWN`` times."""
    draws = torch.Generator().manual_seed(0)
    if hasattr(scores, "coverage"):
        off_centre = torch.rand(DRAWN, problem.y_test.numel(), generator=draws)
        return float(np.mean([
            _distance({level: float((u < level).double().mean()) for level in scores.coverage})
            for u in off_centre
        ]))  # fmt: skip
    p = posterior.predict(problem.x_test, keep_samples=False).mean.double()
    labels = torch.multinomial(p, DRAWN, replacement=True, generator=draws)
    return float(np.mean([expected_calibration_error(p, y) for y in labels.mT]))


@whole_runs()
def run(problem: Problem, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ours by pure defaults, and the rivals, unless they are ``known``."""
    regression = problem.y.is_floating_point()
    likelihood = likelihoods.Gaussian("rmse") if regression else likelihoods.Categorical()
    began, used = time.perf_counter(), time.process_time()
    posterior = Langevin(problem.make(0.0, 0), likelihood).sample(
        (problem.x, problem.y), progress=False
    )
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    scores = posterior.evaluate(problem.x_test, problem.y_test)
    others = {k: known[k] for k in RIVALS} if known else _rivals(problem)
    recipe = posterior.config["recipe"]
    return {
        "rows": len(problem.x),
        "ours": scores.nll,
        "calibration_error": _calibration_error(scores),
        "calibration_error_if_calibrated": _if_calibrated(posterior, problem, scores),
        "plain": _plain(posterior, problem),
        **others,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "steps": posterior.config["steps"] + posterior.config.get("steps_before", 0),
        "step_size": recipe["step_size"],
        "prior_scale": recipe["prior_scale"],
        "sharpness": recipe["sharpness"],
        "noise_widths": posterior.config.get("noise_widths"),
        "way": recipe["way"],
    }


def _plain(posterior: Posterior, problem: Problem) -> dict[str, float] | None:
    """The same scores of the plain mixture, where predictions are sharpened, or have noise of
    several widths."""
    if posterior.sharpness == 1 and "noise_widths" not in posterior.config:
        return None
    scores = posterior.evaluate(problem.x_test, problem.y_test, sharpness=1.0)
    return {"ours": scores.nll, "calibration_error": _calibration_error(scores)}


def _rivals(problem: Problem) -> dict[str, Any]:
    began = time.process_time()
    found = rivals.all_scores(problem.make, *problem[:4])
    return found | {"rivals_cpu_seconds": time.process_time() - began}


def table(rows_by_name: dict[str, Any]) -> str:
    """Markdown: a problem a row, the best rival beside, and how many are as good and calibrated."""
    rows = []
    for name, row in rows_by_name.items():
        rival = min(RIVALS[:3], key=row.__getitem__)
        scale, beta = (
            (row.get(k) or {"value": 1.0})["value"] for k in ("prior_scale", "sharpness")
        )
        rows.append((
            name, f"{row['rows']:,}", f"{row['ours']:.3f}", f"{row[rival]:.3f}", rival,
            f"{row['calibration_error']:.3f}", _number(row.get("calibration_error_if_calibrated")),
            f"{scale:.3g}", f"{beta:.3g}",
            f"{row['cpu_seconds']:.1f}",
        ))  # fmt: skip
    good = {k for k, r in rows_by_name.items() if r["ours"] <= min(r[v] for v in RIVALS[:3])}
    plain = ", ".join(
        f"{name} {row['plain']['ours']:.3f} → {row['ours']:.3f} (calibration error "
        f"{row['plain']['calibration_error']:.3f} → {row['calibration_error']:.3f})"
        for name, row in rows_by_name.items()
        if row["plain"]
    )
    calibrated = sum(r["calibration_error"] < 0.05 for r in rows_by_name.values())
    columns = (
        "rows, NLL, best rival's, rival, calibration error, if calibrated, prior scale, sharpness, "
        "CPU-seconds"
    )
    return f"{markdown(columns.split(', '), rows)}\n\nAt least as good as the best rival on " + (
        f"{len(good)} of {len(rows)} ({len(good.difference(SEEN))} of the "
        f"{len(rows_by_name.keys() - SEEN)} that are new to the recipe), calibration error below "
        f".05 on {calibrated}. From the plain mixture to the sharpened one, or to noise of several "
        f"widths: {plain or 'none'}."
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=record.FILE)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--page", type=Path, help="a page with markers for the table")
    options = parser.parse_args()
    for name, make in problems():
        known = record.rows(options.out, PART).get(name)
        if (known and not options.ours) or (options.only and name not in options.only):
            continue
        row = run(make(), known)
        record.keep(options.out, PART, name, row)
        best = min(row[k] for k in RIVALS[:3])
        print(
            f"{name}: ours {row['ours']:.4f}, best rival {best:.4f}, calibration "
            f"{row['calibration_error']:.3f}, {row['cpu_seconds']:.1f} s", flush=True,
        )  # fmt: skip
    if options.page:
        record.show(options.page, options.out, PART, table)


if __name__ == "__main__":
    main()
