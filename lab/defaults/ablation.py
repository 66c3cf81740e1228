"""What every rule of the recipe is worth: development problems (``development``) with it and
without it.

    python -m lab.defaults.ablation --jobs 16 --seeds 3 --out results/ablation.json

A rule is left out by other ``Settings`` or another argument (``RULES``). A run without it is
paired with the one of the same problem and seed with all of them: the differences of test NLL and
calibration error, and the ratio of CPU-seconds, have errors over these pairs. Runs that a rule
does not touch have the same bits, and their ratio, the machine's own, is taken off. A rule pays
where leaving it out makes NLL or calibration worse, or time longer and neither of them better, each
by two errors; and where a run without it ends in an error. What is in the file is not run again.
"""

from __future__ import annotations

import logging
import math
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from lab.command import at_least, show, study
from lab.defaults import calibration
from lab.defaults.development import PROBLEMS
from lab.defaults.problems import by_defaults, likelihood_for, steps_of
from lab.defaults.twenty import counts
from lab.pages import fill, markdown
from lab.results import attempted, complete
from natural_langevin import Langevin, models, preconditioners
from natural_langevin.recipe.settings import Length, Settings, StepSize

NEVER, WITH = 10**9, "all rules"
PARTS = {field.name for field in fields(Settings)}
#: What every rule is left out by: parts of ``Settings`` and arguments of ``Langevin``; "native" is
#: the trial of the prior with an engine, "sample" are arguments of ``sample``.
RULES: dict[str, dict[str, Any]] = {
    "few weights have a dense metric": {"metric": {"few_weights": 0}},
    "of few weights that are no layers', labels drawn from the model": {
        "preconditioner": preconditioners.FullFisher()
    },
    "few weights: slow directions are measured": {"step_size": {"most_weights": 0}},
    "few weights have 400 effective draws": {"step_size": {"ess": 100.0}},
    "the metric averages all of burn-in": {"metric": {"averages": False}},
    "minibatches grow with the rows": {"batch": {"most": 100}},
    "all rows where two minibatches do not fit": {"sample": {"batch_size": 100}},
    "minibatches' heat limits steps": {"step_size": {"heat": math.inf}},
    "small steps have less friction": {"step_size": {"least_friction": 0.1}},
    "a pilot goes on while curvature changes": {"pilot": {"steps": (1, 50)}},
    "the prior's scale by held-out rows": {"prior": {"fewest_rows": NEVER}},
    "scales in question run on": {"native": {"rounds": 1}},
    "outliers count little in a trial": {"prior": {"most_above": math.inf}},
    "chains go downhill first": {"init": "fan_in"},
    "downhill in rounds": {"descent": {"rounds": (300,)}},
    "downhill by held-out rows": {"descent": {"fewest_rows": NEVER}},
    "downhill by small minibatches": {"descent": {"batch": None}},
    "a quarter of a run may be all": {"end": {"first_steps": NEVER}},
    "a later part is three times the one before": {"end": {"growth": NEVER}},
    "a metric is remembered": {"end": {"remembered": 0}},
    "longer where chains do not agree": {"cheap": {"unmixed": 1}, "length": {"unmixed": 1}},
    "cheap steps: all that changes": {"cheap": None},
    "cheap steps are half as large": {"cheap": {"steepness": StepSize.steepness}},
    "cheap steps have less friction": {"cheap": {"damped": StepSize.damped}},
    "cheap steps: 300 effective draws": {"cheap": {"ess": Settings().end.ess}},
    "cheap steps: nine times as many, not five": {"cheap": {"unmixed": Length.unmixed}},
    "classes by their sharpness": {"sharpness": {"least_gain": math.inf}},
    "all of calibration": {"calibrate": False},
}
#: Problems on which these act, at the usual settings; the others, on all but COSTLY.
COSTLY = ("many", "decay")
LINEAR = ("plane", "odds", "slopes")
FEW = ("decay", *LINEAR)
CLASSES = ("rings", "blurred", "rare", "clear", "words", "odds")
SEVERAL = ("correlated", "exact", "outliers", "uneven", "rings", "blurred", "rare", "clear")
CHEAP = ("wave", "few", "rings", "bowl", "wild", "outliers", *LINEAR)
ACTS: dict[str, tuple[str, ...]] = {
    "few weights have a dense metric": FEW,
    "of few weights that are no layers', labels drawn from the model": ("decay",),
    "few weights: slow directions are measured": FEW,
    "few weights have 400 effective draws": FEW,
    "minibatches grow with the rows": ("blurred", "uneven", "clear", "odds", "slopes", "many"),
    "all rows where two minibatches do not fit": ("sparse", "bowl"),
    "minibatches' heat limits steps": (*SEVERAL, "words", "odds", "slopes", "many"),
    "a pilot goes on while curvature changes": (*SEVERAL, "wave", "sparse", "words", "bowl"),
    "outliers count little in a trial": ("outliers", "wild", "uneven", "few", "exact"),
    "downhill by small minibatches": (*SEVERAL, "words", "many"),
    "cheap steps: all that changes": CHEAP,
    "cheap steps are half as large": CHEAP,
    "cheap steps have less friction": CHEAP,
    "cheap steps: 300 effective draws": CHEAP,
    "cheap steps: nine times as many, not five": CHEAP,
    "classes by their sharpness": CLASSES,
}


def problems_of(rule: str) -> tuple[str, ...]:
    """Those on which a rule is left out."""
    usual = tuple(name for name in PROBLEMS if name not in COSTLY)
    return tuple(PROBLEMS) if rule == WITH else ACTS.get(rule, usual)


def without(rule: str) -> tuple[Settings, dict[str, Any]]:
    """The settings, and the other arguments, of a recipe without this rule."""
    settings, options = Settings(), {}
    for name, value in ({} if rule == WITH else RULES[rule]).items():
        if name == "native":
            trial = replace(settings.prior.native, **value)
            settings = replace(settings, prior=replace(settings.prior, native=trial))
        elif name in PARTS:
            part = value and replace(getattr(settings, name), **value)
            settings = replace(settings, **{name: part})
        else:
            options[name] = value
    return settings, options


@cache
def _warm_up() -> None:
    """What a process does once is not the first run's."""
    for y in (torch.rand(60, 1), torch.arange(60) % 2):
        network = models.mlp(2, 1 if y.is_floating_point() else 2, (4,))
        sampler = Langevin(network, likelihood_for(y), chains=1)
        sampler.sample((torch.rand(60, 2), y), 50, progress=False)


def run(rule: str, name: str, seed: int) -> dict[str, Any]:
    """One run and what came of it."""
    torch.set_num_threads(1)
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    settings, options = without(rule)
    problem = PROBLEMS[name](seed)
    _warm_up()
    posterior, cpu = by_defaults(problem, seed, recipe=settings, **options)
    scores = posterior.evaluate(problem.x_test, problem.y_test)
    return {
        "nll": scores.nll,
        "calibration_error": calibration.error([counts(posterior, problem, scores)]),
        "cpu_seconds": cpu,
        "steps": steps_of(posterior),
        "prior_scale": posterior.plan.prior_scale,
        "lost": posterior.chains - len(posterior.healthy),
    }


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Of independent numbers."""
    return fmean(values), stdev(values) / math.sqrt(len(values))


def paired(rows: dict[str, dict[str, Any]], rule: str | None = None) -> tuple[list[Any], int]:
    """Pairs of rows with and without a rule (None: any of them), and how many runs failed."""
    pairs, failed = [], 0
    for key, found in rows.items():
        own, name, seed = key.split("|")
        usual = rows.get("|".join((WITH, name, seed)))
        if own != WITH and rule in (None, own) and usual is not None and "failed" not in usual:
            failed += "failed" in found
            pairs += [] if "failed" in found else [(usual, found)]
    return pairs, failed


def _slower(pairs: list[Any]) -> list[float]:
    """ln of the ratio of CPU-seconds."""
    return [math.log(b["cpu_seconds"] / a["cpu_seconds"]) for a, b in pairs]


def differences(rows: dict[str, dict[str, Any]], rule: str) -> dict[str, Any]:
    """What leaving the rule out changes, in the mean of all pairs, with errors."""
    pairs, failed = paired(rows, rule)
    if len(pairs) < 2:
        return {}
    untouched = _slower([(a, b) for a, b in paired(rows)[0] if a["nll"] == b["nll"]])
    usual = fmean(untouched) if untouched else 0.0
    changes = {
        what: mean_and_error([b[what] - a[what] for a, b in pairs])
        for what in ("nll", "calibration_error")
    }
    changes["log_cpu"] = mean_and_error([slower - usual for slower in _slower(pairs)])
    same = sum(a["nll"] == b["nll"] for a, b in pairs)
    why = pays(changes) + f" {failed} errors" * bool(failed)
    return {"pairs": len(pairs), "same": same, "failed": failed, "pays": why.strip(), **changes}


def pays(changes: dict[str, tuple[float, float]]) -> str:
    """By what a rule pays, by two errors; nothing where it does not."""
    worse = {k: mean > 2 * error for k, (mean, error) in changes.items()}
    better = {k: mean < -2 * error for k, (mean, error) in changes.items()}
    found = [k for k in ("nll", "calibration_error") if worse[k]]
    if worse["log_cpu"] and not (better["nll"] or better["calibration_error"]):
        found.append("log_cpu")
    return ", ".join(found)


def table(rows: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and lines, one for every rule that was left out."""
    lines = []
    for rule in RULES:
        found = differences(rows, rule)
        if found:
            (nll, e), (c, ce), (t, te) = (found[k] for k in ("nll", "calibration_error", "log_cpu"))
            lines.append([
                rule, f"{nll:+.4f} ± {e:.4f}", f"{c:+.4f} ± {ce:.4f}",
                f"× {math.exp(t):.2f} ± {math.exp(t) * te:.2f}",
                f"{found['pairs'] - found['same']} of {found['pairs']}", found["pays"] or "nothing",
            ])  # fmt: skip
    return ["NLL", "calibration error", "CPU", "changed", "it pays by"], lines


def main() -> None:
    """Runs the pairs that the file does not have yet."""
    parser = study(__doc__, "results/ablation.json", jobs="runs")
    parser.add_argument("--seeds", type=at_least(1), default=3, help="tables of every problem")
    parser.add_argument("--problems", nargs="*", choices=[*PROBLEMS], default=[*PROBLEMS])
    parser.add_argument("--rules", nargs="*", choices=[*RULES], default=[*RULES])
    parser.add_argument("--page", type=Path, help="a page with markers for the table")
    given = parser.parse_args()
    items = [
        (rule, name, seed)
        for seed in range(given.seeds)
        for rule in (WITH, *given.rules)
        for name in problems_of(rule)
        if name in given.problems
    ]
    items.sort(key=lambda item: (item[2], item[1] not in COSTLY))  # the longest first
    results = complete(
        given.out, {"problems": [*PROBLEMS]}, items, partial(attempted, run), jobs=given.jobs,
        summary=lambda rows: {rule: differences(rows, rule) for rule in RULES},
    )  # fmt: skip
    show(*table(results["rows"]))
    if given.page:
        fill(given.page, "ablation", markdown(*table(results["rows"])))


if __name__ == "__main__":
    main()
