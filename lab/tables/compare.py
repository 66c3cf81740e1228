"""The comparison with what others would use: ``python -m lab.tables.compare FOLDER``.

Ours is ``NaturalLangevinClassifier()`` / ``NaturalLangevinRegressor()`` with the defaults, given
the frame as it is; the rivals (``rivals``, ``networks``) are tuned. Every fit is written to
``--parts`` with the scores of its test rows, so that methods are compared row by row; fits that are
there are not run again. ``--out`` has the summary.

NLL is -ln p(y) of a test row: of a density where targets are numbers, of a probability where they
are counts or classes, and at zero where a tenth of the amounts is zero. Calibration error: of
classes the mean gap of confidence and accuracy in 15 bins, of numbers the mean gap between the
levels of central intervals and how many rows they hold (within a jump of the distribution function
the level is drawn); beside it, what calibrated predictions would have on as many rows, by chance.
Differences are of the same rows; their errors are the standard errors over the
rows of all splits.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import torch

from lab import pages
from lab.defaults import calibration
from lab.defaults.twenty_table import GOAL
from lab.jobs import side_by_side
from lab.tables.laws import Array
from lab.tables.public import TABLES, read, split
from lab.tables.rivals import RIVALS, is_installed, run_rival
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.sklearn import NaturalLangevinClassifier, NaturalLangevinRegressor

log = logging.getLogger("natural_langevin")

OURS = "ours"
METHODS = (OURS, *RIVALS)
SPLITS = 3
#: Levels of the central intervals whose coverage is the calibration of numbers.
LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))

Scores = dict[str, Array]


def class_scores(p: Array, y: Array) -> Scores:
    """Of every row -ln p, whether the likeliest class is wrong, and how sure of it one was."""
    rows = np.arange(len(y))
    with np.errstate(divide="ignore"):
        nll = -np.log(p[rows, y])
    return {"nll": nll, "off": (p.argmax(1) != y).astype(float), "confidence": p.max(1)}


def number_scores(law: Any, y: Array, *, step: float) -> Scores:
    """Of every row -ln p, the distance of the mean, and F(y); where F jumps at y, a level between
    its two values is drawn. ``step``: from a count to the one below, whose probability is that of
    half a step around it, so that laws of counts and of numbers can be compared."""
    if step:
        below, above = law.cdf(y - step / 2), law.cdf(y + step / 2)
        nll = -np.log(np.maximum(above - below, 1e-300))
    else:
        above, nll = law.cdf(y), -law.log_prob(y)
        below = np.where(y == 0, 0.0, above)
    level = below + np.random.default_rng(0).uniform(size=len(y)) * (above - below)
    return {"nll": nll, "off": law.mean - y, "level": level}


def of_calibration(scores: Scores) -> calibration.Counts:
    """What the calibration of all rows given is judged by, see above."""
    if "confidence" in scores:
        sure = torch.as_tensor(scores["confidence"])
        right = torch.as_tensor(scores["off"]) == 0
        # Two classes stand for "the likeliest one" and "any other".
        p = torch.stack([1 - sure, sure], -1)
        p = torch.where(sure[:, None] < 0.5, torch.stack([torch.zeros_like(sure), sure], -1), p)
        return calibration.of_classes(p, right.long())
    inside = np.abs(2 * scores["level"] - 1)
    coverage = {level: float((inside <= level).mean()) for level in LEVELS}
    return calibration.of_coverage(coverage, len(inside))


def predicted(
    method: str, kind: str, x: pd.DataFrame, y: Array, x_test: pd.DataFrame, seed: int
) -> tuple[Any, dict[str, Any]]:
    """The law, or the class probabilities, of test rows by a method, None where it has none; and
    what a fit of ours says of itself."""
    if method != OURS:
        return run_rival(method, x, y, x_test, kind, seed), {}
    estimator = NaturalLangevinClassifier if kind == "class" else NaturalLangevinRegressor
    model: Any = estimator(random_state=seed, verbose=False).fit(x, y)
    said = model.predict_proba(x_test) if kind == "class" else model.predict_dist(x_test)
    return said, {"chosen": model.reason_}


def fit_and_score(name: str, method: str, number: int, folder: Path) -> tuple[Scores, Any] | None:
    """One fit, scored on the test rows; None where the method has no law for such a target."""
    x, y, x_test, y_test = split(name, number, folder)
    kind = TABLES[name].kind
    began, started = time.process_time(), time.perf_counter()
    said, about = predicted(method, kind, x, y, x_test, number)
    if said is None:
        return None
    about |= {
        "cpu_seconds": time.process_time() - began,
        "seconds": time.perf_counter() - started,
    }
    if kind == "class":
        return class_scores(said, y_test), about
    if method == OURS:
        low, high = said.interval(0.99)
        about["means_outside"] = int(((said.mean < low) | (said.mean > high)).sum())
    return number_scores(said, y_test, step=1.0 if kind == "count" else 0.0), about


def work(item: tuple[str, str, int], *, folder: Path, parts: Path, until: float) -> str:
    """One fit into its file."""
    name, method, number = item
    if time.time() > until:
        return f"{name}, {method}, {number}: no time left"
    try:
        done = fit_and_score(name, method, number, folder)
    except Exception as error:  # a row of the table: others go on
        done = None
        log.exception("%s", error)
        (parts / f"{name}.{method}.{number}.error").write_text(repr(error))
    if done is None:
        return f"{name}, {method}, {number}: none"
    scores, about = done
    small = {key: rows.astype(np.float32) for key, rows in scores.items()}
    np.savez_compressed(parts / f"{name}.{method}.{number}.npz", about=json.dumps(about), **small)
    return (
        f"{name}, {method}, {number}: NLL {scores['nll'].mean():.4f}, "
        f"off {np.sqrt(np.mean(scores['off'] ** 2)):.4g}, "
        f"calibration {calibration.error([of_calibration(scores)]):.3f}, "
        f"{about['cpu_seconds']:.1f} s"
    )


def read_parts(parts: Path) -> dict[str, dict[str, dict[int, dict[str, Any]]]]:
    """Scores by table, method and split."""
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for path in sorted(parts.glob("*.npz")):
        name, method, number = path.stem.split(".")
        with np.load(path) as file:
            scores = {key: file[key] for key in file.files}
        found.setdefault(name, {}).setdefault(method, {})[int(number)] = scores
    return found


def paired(ours: Scores, other: Scores, *, classes: bool) -> dict[str, list[float]]:
    """Ours minus the other with its standard error, of NLL and of RMSE (or the share of wrong
    answers): RMSE's is (MSE - MSE') / (RMSE + RMSE')."""

    def mean_and_error(rows: Array, size: float = 1.0) -> list[float]:
        return [float(rows.mean() / size), float(rows.std(ddof=1) / np.sqrt(len(rows)) / size)]

    squares = np.square(ours["off"]) - np.square(other["off"])
    size = 1.0
    if not classes:
        size = sum(float(np.sqrt(np.mean(np.square(s["off"])))) for s in (ours, other))
    return {
        "nll": mean_and_error(ours["nll"] - other["nll"]),
        "off": mean_and_error(squares, max(size, 1e-300)),
    }


def joined(of: dict[int, dict[str, Any]], splits: list[int]) -> Scores:
    """The rows of several splits, one after the other."""
    keys = [k for k in of[splits[0]] if k != "about"]
    return {k: np.concatenate([of[s][k] for s in splits]) for k in keys}


def summary(parts: Path) -> list[dict[str, Any]]:
    """One row per table and method, over the splits that both it and ours have."""
    rows = []
    for name, methods in read_parts(parts).items():
        kind = TABLES[name].kind
        mine = methods.get(OURS, {})
        for method in [m for m in METHODS if m in methods]:
            splits = sorted(set(methods[method]) & set(mine or methods[method]))
            if not splits:
                continue
            scores = joined(methods[method], splits)
            judged = of_calibration(scores)
            about = [json.loads(str(methods[method][s]["about"])) for s in splits]
            row: dict[str, Any] = {
                "table": name,
                "method": method,
                "splits": splits,
                "rows": len(scores["nll"]),
                "nll": float(scores["nll"].mean()),
                "off": float(np.sqrt(np.mean(scores["off"] ** 2)))
                if kind != "class"
                else float(scores["off"].mean()),
                "calibration": calibration.error([judged]),
                "calibration_if_calibrated": calibration.if_calibrated([judged]),
                "cpu_seconds": float(np.mean([a["cpu_seconds"] for a in about])),
            }
            if method == OURS:
                row["chosen"] = [a["chosen"] for a in about]
                row["means_outside"] = sum(a.get("means_outside", 0) for a in about)
            elif mine:
                row["ours_minus_it"] = paired(joined(mine, splits), scores, classes=kind == "class")
            rows.append(row)
    return rows


def behind(row: dict[str, Any], score: str) -> float:
    """How many errors ours is behind this rival; negative where it is ahead."""
    mean, error = row["ours_minus_it"][score]
    return float(mean / error) if error > 0 else float(np.sign(mean) * np.inf if mean else 0.0)


def markdown(rows: list[dict[str, Any]]) -> str:
    """A line per table: ours, and the best rival of either score with the paired difference."""
    columns = (
        "ours: NLL", "best rival", "ours − it", "ours: RMSE or wrong", "best rival", "ours − it",
        "calibration (if calibrated)", "CPU s", "rival's",
    )  # fmt: skip
    lines = []
    for name in TABLES:
        mine = [r for r in rows if r["table"] == name and r["method"] == OURS]
        others = [r for r in rows if r["table"] == name and r["method"] != OURS]
        if not mine or not others:
            continue
        (ours,) = mine
        cells = []
        for score in ("nll", "off"):
            best = min(others, key=lambda r: r[score])
            mean, error = best["ours_minus_it"][score]
            text = f"{mean:+.3g} ± {error:.2g}"
            cells += [
                f"{ours[score]:.4g}",
                f"{best['method']} {best[score]:.4g}",
                f"**{text}**" if behind(best, score) > 2 else text,
            ]
        first = min(others, key=lambda r: r["nll"])
        lines.append((
            f"{name} ({TABLES[name].why})", *cells,
            f"{ours['calibration']:.3f} ({ours['calibration_if_calibrated']:.3f})",
            f"{ours['cpu_seconds']:.1f}", f"{first['cpu_seconds']:.1f}",
        ))  # fmt: skip
    return pages.markdown(columns, lines, first="table")


def counts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How often ours is within two errors of the best rival or ahead, and calibrated: by the error
    itself, and by what it has beyond that of calibrated predictions."""
    tables = sorted({r["table"] for r in rows if "ours_minus_it" in r})
    found: dict[str, Any] = {"tables": len(tables)}
    for score in ("nll", "off"):
        good = 0
        for name in tables:
            others = [r for r in rows if r["table"] == name and r["method"] != OURS]
            good += behind(min(others, key=lambda r: r[score]), score) <= 2
        found[score] = good
    mine = [r for r in rows if r["method"] == OURS]
    found["calibrated"] = sum(r["calibration"] < GOAL for r in mine)
    beyond = [r["calibration"] - r["calibration_if_calibrated"] for r in mine]
    found["calibrated_but_for_chance"] = sum(v < GOAL for v in beyond)
    found["means_outside"] = sum(r["means_outside"] for r in mine)
    return found


def main() -> None:
    """Runs the fits that are missing and writes the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="the CSV files of lab.tables.public")
    parser.add_argument("--parts", type=Path, default=Path("build/tables"))
    parser.add_argument("--out", type=Path, help="where the summary is written (JSON)")
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--splits", type=int, nargs="+", default=list(range(SPLITS)))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="no fit begins after these")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    options.parts.mkdir(parents=True, exist_ok=True)
    methods = [m for m in options.methods if is_installed(m)]
    items = [
        (name, method, number)
        for number in options.splits
        for method in methods
        for name in options.tables
        if not options.summary and not (options.parts / f"{name}.{method}.{number}.npz").exists()
    ]
    if options.jobs > 1:  # the longest first
        size = {name: len(read(name, options.folder)[1]) for name in options.tables}
        items.sort(key=lambda i: (i[1] != OURS, i[2], methods.index(i[1]), -size[i[0]]))
    until = time.time() + options.seconds
    job = partial(work, folder=options.folder, parts=options.parts, until=until)
    for line in side_by_side(job, items, options.jobs):
        print(line, flush=True)
    rows = summary(options.parts)
    print(markdown(rows))
    print(json.dumps(counts(rows)))
    if options.out is not None:
        results = {"splits": options.splits, "counts": counts(rows), "rows": rows} | origin("cpu")
        results["versions"]["scikit-learn"] = sklearn.__version__
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
