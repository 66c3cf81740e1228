"""Pure defaults on twenty problems (``problems``) against what people would use instead
(``rivals``): test NLL and calibration error, seconds beside.

``python -m lab.defaults.twenty [--splits 5] [--ours | --rivals]``: what
is in the file is not run again, but ours with ``--ours`` (``--only`` some problems). Every row is
kept when it is done, and any number of processes may share the file.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from lab.defaults import calibration, record, rivals
from lab.defaults.problems import Problem, by_defaults, problems, steps_of
from lab.defaults.twenty_table import key, table
from natural_langevin import Posterior

PART, RIVALS = "twenty", "rivals"


def counts(posterior: Posterior, problem: Problem, scores: Any) -> calibration.Counts:
    """What the calibration of these ``scores`` is judged by."""
    if hasattr(scores, "coverage"):
        return calibration.of_coverage(scores.coverage, scores.count)
    mean = posterior.predict(problem.x_test, keep_samples=False).mean
    return calibration.of_classes(mean, problem.y_test)


def run(problem: Problem) -> dict[str, Any]:
    """Ours, by pure defaults."""
    began = time.perf_counter()
    posterior, cpu = by_defaults(problem)
    seconds = time.perf_counter() - began
    scores = posterior.evaluate(problem.x_test, problem.y_test)
    found, plan = counts(posterior, problem, scores), posterior.plan
    return {
        "rows": len(problem.x),
        "ours": scores.nll,
        "calibration_error": calibration.error([found]),
        "calibration_error_if_calibrated": calibration.if_calibrated([found]),
        "calibration": found,
        "plain": _plain(posterior, problem),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "steps": steps_of(posterior),
        "step_size": plan.step_size,
        "prior_scale": plan.prior_scale,
        "sharpness": plan.calibration and plan.calibration.sharpness,
        "noise_widths": posterior.config.get("noise_widths"),
        "spread": posterior.config.get("spread"),
        "way": plan.measured["way"],
    }


def _plain(posterior: Posterior, problem: Problem) -> dict[str, float] | None:
    """The same scores of the plain mixture, where predictions are sharpened, or have noise of
    several widths (and less spread)."""
    if posterior.sharpness == 1 and "noise_widths" not in posterior.config:
        return None
    scores = posterior.evaluate(problem.x_test, problem.y_test, sharpness=1.0)
    if hasattr(scores, "coverage"):
        error = calibration.error([counts(posterior, problem, scores)])
    else:
        error = scores.calibration_error
    return {"ours": scores.nll, "calibration_error": error}


def run_rivals(problem: Problem) -> dict[str, Any]:
    """The three of ``rivals``, tuned on held-out rows of the split."""
    began = time.process_time()
    found = rivals.all_scores(problem.make, *problem[:4])
    return found | {"cpu_seconds": time.process_time() - began}


def main() -> None:
    """Command line."""
    parser = record.parser(__doc__)
    parser.add_argument("--splits", type=int, default=1, help="how many, from the first")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--ours", action="store_true", help="ours alone, and again")
    which.add_argument("--rivals", action="store_true", help="the rivals alone")
    options = parser.parse_args()
    for split in range(options.splits):
        for name, make in problems(split):
            if not options.only or name in options.only:
                _both(options, key(name, split), make)
    if options.page:
        known = record.rows(options.out, RIVALS)
        record.show(options.page, options.out, PART, partial(table, rivals=known))


def _both(options: argparse.Namespace, name: str, make: Any) -> None:
    """Ours and the rivals, as far as they are asked for and not yet there."""
    done = {part: name in record.rows(options.out, part) for part in (PART, RIVALS)}
    if options.ours or not (options.rivals or done[PART]):
        row = run(make())
        record.keep(options.out, PART, name, row)
        error = row["calibration_error"]
        print(f"{name}: {row['ours']:.4f}, calibration {error:.3f}, "
              f"{row['cpu_seconds']:.1f} s", flush=True)  # fmt: skip
    if not (options.ours or done[RIVALS]):
        row = run_rivals(make())
        record.keep(options.out, RIVALS, name, row)
        best = min(rivals.NAMES, key=lambda k: row[k]["nll"])
        print(f"{name}: {best} {row[best]['nll']:.4f}, {row['cpu_seconds']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
