"""The page of one saved posterior: settings, losses, calibration, uncertainty and a diagnosis."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from natural_langevin._internal.atomic import write_output
from natural_langevin.cli.pages import charts, text
from natural_langevin.cli.pages.charts import coverage, reliability
from natural_langevin.cli.pages.page import environment, plain
from natural_langevin.cli.pages.schema import showing

SECTIONS = {
    "verdicts": "Can it be trusted?",
    "diagram": "Calibration",
    "histograms": "How sure is it?",
    "trace": "Training",
    "about": "About this posterior",
}
HUE = "hue5"
FIGURES = {
    "accuracy": lambda v: (text.percent(100 * v, 1), "accuracy"),
    "nll": lambda v: (text.number(v, 4), "negative log-likelihood, nats"),
    "brier": lambda v: (text.number(v, 4), "Brier score, 0 to 2"),
    "ece": lambda v: (text.number(v, 4), "calibration error"),
    "auc": lambda v: (text.number(v, 4), "area under the ROC curve"),
    "rmse": lambda v: (text.short(v), "root-mean-square error"),
    "coverage": lambda v: (text.percent(100 * v, 1), "of rows inside their 90 % interval"),
}


def render_posterior(page: Mapping[str, Any]) -> str:
    """``page``: title, command, about (heading -> entries), quality as ``tabular`` writes it, and
    ``words``: sentences on how sure it is.

    A part that the quality lacks (a posterior without labelled rows) is left out of the page."""
    with showing("the record of this posterior is damaged", "train or evaluate again"):
        values = _values(page)
        sections = {key: title for key, title in SECTIONS.items() if values.get(key)}
        return environment().get_template("posterior.html").render(**values, sections=sections)


def write_posterior_report(page: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the page under its name whole, or leave what was there."""
    write_output(path, render_posterior(page).encode("utf-8"))


def _values(page: Mapping[str, Any]) -> dict[str, Any]:
    quality = page["quality"]
    diagnosis = quality.get("diagnosis")
    found = quality.get("trace") or {"step": []}
    return {
        "title": page["title"],
        "eyebrow": "Posterior report",
        "byline": page["byline"],
        "summary": " ".join([_summary(quality), *page.get("words", [])]),
        "figures": [
            FIGURES[key](value)
            for key, value in quality.get("scores", {}).items()
            if value is not None
        ],
        "verdicts": _verdicts(diagnosis) if diagnosis else None,
        "diagnosis": diagnosis["summary"] if diagnosis else "",
        "diagram": _diagram(quality),
        "kind": quality.get("task"),
        "histograms": _histograms(quality),
        "trace": charts.trace(found["step"], found["loss"]) if found["step"] else None,
        "command": page["command"],
        "about": [
            (heading, [(str(k), plain(v)) for k, v in entries.items()])
            for heading, entries in page["about"].items()
        ],
    }


def _summary(quality: Mapping[str, Any]) -> str:
    if not quality.get("rows"):
        return "No labelled rows were scored, so this page says how it was made and little else."
    scores, baseline = quality["scores"], quality.get("baseline") or {}
    if None in scores.values():
        return "Its scores are not finite: the chains have diverged."
    rows = f"On {text.count(quality['rows'], 'row')} ({quality['data']})"
    if "accuracy" in scores:
        words = f"{rows} it is right in {text.percent(100 * scores['accuracy'], 1)} of cases"
        if "accuracy" in baseline:
            words += ", where always guessing the commonest class is right in "
            words += text.percent(100 * baseline["accuracy"], 1)
        return f"{words}. Its confidence and its accuracy differ by {scores['ece']:.3f} on average."
    words = f"{rows} it is off by {text.short(scores['rmse'])} (root mean square)"
    if "rmse" in baseline:
        words += f", where always guessing the mean is off by {text.short(baseline['rmse'])}"
    inside = text.percent(100 * scores["coverage"], 1)
    return f"{words}. Its 90 % intervals hold the truth in {inside} of cases."


def _verdicts(diagnosis: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Kind, heading and sentence of each."""
    if diagnosis["verdicts"]:
        return [("no", "Look at this", str(sentence)) for sentence in diagnosis["verdicts"]]
    if str(diagnosis["summary"]).startswith("Not diagnosed"):
        return [("open", "Not diagnosed", str(diagnosis["summary"]))]
    return [("yes", "Nothing suspicious", "The chains agree, and there are enough draws.")]


def _diagram(quality: Mapping[str, Any]) -> charts.Chart | None:
    if quality.get("reliability"):
        return reliability(quality["reliability"], "Reliability", HUE)
    if quality.get("coverage"):
        return coverage(quality["coverage"], "Coverage of intervals", HUE, quality["rows"])
    return None


def _histograms(quality: Mapping[str, Any]) -> list[charts.Chart]:
    found = quality.get("uncertainty")
    if not found:
        return []
    label, high = found["label"], found["high"]
    return [
        charts.histogram("Total uncertainty", label, found["total"], high, HUE),
        charts.histogram("Epistemic part", label, found["epistemic"], high, "hue2"),
    ]
