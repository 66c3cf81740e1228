"""The first paragraph and the figures beside it, generated from the numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from natural_langevin.cli.pages import text
from natural_langevin.cli.pages.table import Row, in_paper, lookup, mean


def machine(results: Mapping[str, Any]) -> str:
    """`NVIDIA H200`, or the processor with its cores."""
    about = results["machine"]
    device = str(about.get("device") or "cpu")
    if device.lower() != "cpu":
        return device
    cores = about.get("cores")
    name = str(about.get("cpu") or "CPU")
    return f"{name}, {text.count(cores, 'core')}" if isinstance(cores, int) else name


def paragraph(results: Mapping[str, Any]) -> str:
    """What ran, what came out best, how it compares with the paper, and what to be wary of."""
    rows = results["rows"]
    sentences = [
        _what_ran(results),
        _best_of_paper([r for r in rows if in_paper(r)]),
        _against_paper(rows),
        _beyond([r for r in rows if not in_paper(r)]),
        _failures(rows),
        _caution(results),
    ]
    return " ".join(s for s in sentences if s)


def figures(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Up to four numbers worth a large font: those of the paper's own proposal, if it was run."""
    rows = results["rows"]
    proposal = [r for r in rows if (r["method"], r["estimate"]) == ("qdop", "ensemble")]
    best = _best(proposal) or _best(rows)
    found = []
    if best is not None:
        found.append((text.number(mean(best, "test.nll"), 4), f"test NLL, {best['label']}"))
        if text.finite(mean(best, "test.accuracy")):
            accuracy = text.percent(mean(best, "test.accuracy"), 2)
            found.append((accuracy, f"test accuracy, {best['label']}"))
        if text.finite(best.get("cost")):
            found.append((f"{best['cost']:.2f} {text.TIMES}", "time per update, relative to SGD"))
    if text.finite(results.get("total_seconds")):
        found.append((text.duration(results["total_seconds"]), "for everything on this page"))
    return found


def _what_ran(results: Mapping[str, Any]) -> str:
    config = results["config"]
    parts = []
    if text.finite(config.get("steps")):
        batch = config.get("batch_size")
        size = f" on minibatches of {batch:,}" if isinstance(batch, int) else ""
        parts.append(text.count(int(config["steps"]), "update") + size)
    if isinstance(config.get("seeds"), list) and config["seeds"]:
        parts.append(text.count(len(config["seeds"]), "seed"))
    details = f" ({', '.join(parts)} per method)" if parts else ""
    methods = len({row["method"] for row in results["rows"]})
    return f"This run compares {text.count(methods, 'method')} on " + (
        f"{text.dataset(config)}{details}."
    )


def _best(rows: Sequence[Row]) -> Row | None:
    measured = [r for r in rows if text.finite(mean(r, "test.nll"))]
    return min(measured, key=lambda r: r["test"]["nll"]["mean"], default=None)


def _best_of_paper(rows: Sequence[Row]) -> str:
    best = _best(rows)
    if best is None:
        return ""
    theirs = [lookup(best, "paper.test.nll"), lookup(best, "paper.test.accuracy")]
    paper = (
        f"; the paper reports {text.number(theirs[0], 4)}"
        + (f" and {text.percent(theirs[1], 2)}" if theirs[1] is not None else "")
        + " for it"
        if theirs[0] is not None
        else ""
    )
    name = f"Of the methods in the paper, “{best['label']}” has the lowest test NLL"
    return f"{name}: {_scores(best)}{paper}."


def _against_paper(rows: Sequence[Row]) -> str:
    pairs = [
        (row["test"]["nll"], theirs)
        for row in rows
        if (theirs := lookup(row, "paper.test.nll")) is not None
        and text.finite(row["test"]["nll"]["mean"])
    ]
    if not pairs:
        return "The paper has no numbers for this setting."
    lower = higher = level = 0
    for ours, theirs in pairs:
        difference = ours["mean"] - theirs
        if abs(difference) <= 2 * (text.deviation(ours) or 0.0):
            level += 1
        elif difference < 0:
            lower += 1
        else:
            higher += 1
    reported = "the one test NLL" if len(pairs) == 1 else f"the {len(pairs)} test NLLs"
    return (
        f"Against {reported} that the paper reports, this run is lower in {lower}, higher in "
        f"{higher}, and within two standard deviations over seeds in {level}."
    )


def _beyond(rows: Sequence[Row]) -> str:
    best = _best(rows)
    if best is None:
        return ""
    return f"Beyond the paper, “{best['label']}” reaches {_scores(best)}."


def _failures(rows: Sequence[Row]) -> str:
    lost = [row["label"] for row in rows if not text.finite(mean(row, "test.nll"))]
    return f"No finite test NLL: {'; '.join(lost)}." if lost else ""


def _caution(results: Mapping[str, Any]) -> str:
    sentences = []
    seeds = results["config"].get("seeds")
    if isinstance(seeds, list) and len(seeds) == 1:
        sentences.append("With a single seed there is no spread to judge small differences by.")
    if departures := len(results.get("deviations") or ()):
        sentences.append(
            f"The protocol departs from that of the paper in {text.count(departures, 'point')}, "
            "listed below the table."
        )
    return " ".join(sentences)


def _scores(row: Row) -> str:
    nll = text.spread(row["test"]["nll"], 4)
    accuracy = row["test"]["accuracy"]
    if not text.finite(accuracy["mean"]):
        return nll
    return f"{nll}, with {text.percent(accuracy['mean'], 2)} accuracy"


CLEAR = 2  # standard errors
SGLD = ("euclidean", "rmsprop", "dop", "qdop")


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the verdict of this run, and the numbers behind it."""

    sentence: str
    verdict: str
    kind: str  # "yes", "no" or "open"
    detail: str


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The paper's claims that these rows can speak to; none for a dataset it does not treat.

    Two means differ when they lie more than two standard errors apart, over seeds; with one seed a
    claim can only be said to agree or disagree with that run."""
    known = {
        (row["method"], row["estimate"]): row
        for row in rows
        if in_paper(row)
        and lookup(row, "paper.test.nll") is not None
        and text.finite(lookup(row, "test.nll.mean"))
    }
    ensembles = {m: known[m, "ensemble"] for m in SGLD if (m, "ensemble") in known}
    found = [_quasi_diagonal(ensembles), _ensembling(known, ensembles), _dropout(known, ensembles)]
    return [claim for claim in found if claim is not None]


def _quasi_diagonal(ensembles: Mapping[str, Row]) -> Claim | None:
    others = [row for method, row in ensembles.items() if method != "qdop"]
    if "qdop" not in ensembles or not others:
        return None
    rival = min(others, key=_nll)
    return _claim(
        "Among the ensembles, the quasi-diagonal Fisher matrix (QDOP) predicts best.",
        [(ensembles["qdop"], rival)],
        f"Test NLL: {_say(ensembles['qdop'])}; the best of the others, {_say(rival)}.",
    )


def _ensembling(known: Mapping[tuple[str, str], Row], ensembles: Mapping[str, Row]) -> Claim | None:
    pairs = [(row, known[m, "mean"]) for m, row in ensembles.items() if (m, "mean") in known]
    if not pairs:
        return None
    lower = sum(_nll(ensemble) < _nll(single) for ensemble, single in pairs)
    return _claim(
        "An ensemble predicts better than the one network at the posterior mean.",
        pairs,
        "The ensemble has the lower test NLL for "
        f"{lower} of {text.count(len(pairs), 'preconditioner')}.",
    )


def _dropout(known: Mapping[tuple[str, str], Row], ensembles: Mapping[str, Row]) -> Claim | None:
    dropout = next((row for (method, _), row in known.items() if method == "dropout"), None)
    if dropout is None or "qdop" not in ensembles:
        return None
    return _claim(
        "Dropout still predicts slightly better than the QDOP ensemble.",
        [(dropout, ensembles["qdop"])],
        f"Test NLL: {_say(dropout)}; {_say(ensembles['qdop'])}.",
    )


def _claim(sentence: str, pairs: Sequence[tuple[Row, Row]], detail: str) -> Claim:
    """Borne out when the first of every pair lies clearly below the second."""
    gaps = [_gap(lower, higher) for lower, higher in pairs]
    spreads = [row["test"]["nll"] for pair in pairs for row in pair]
    single = any(text.deviation(spread) is None for spread in spreads)
    if min(gaps) > CLEAR:
        return Claim(sentence, "agrees, one seed" if single else "borne out", "yes", detail)
    if min(gaps) < -CLEAR:
        return Claim(sentence, "disagrees, one seed" if single else "not borne out", "no", detail)
    return Claim(sentence, "too close to call", "open", detail)


def _gap(lower: Row, higher: Row) -> float:
    """How far `lower` lies below `higher` in test NLL, in standard errors of the difference."""
    difference = _nll(higher) - _nll(lower)
    spreads = [row["test"]["nll"] for row in (lower, higher)]
    variance = sum((text.deviation(s) or 0.0) ** 2 / text.seeds(s) for s in spreads)
    if not difference:
        return 0.0
    return difference / math.sqrt(variance) if variance else math.copysign(math.inf, difference)


def _nll(row: Row) -> float:
    return float(row["test"]["nll"]["mean"])


def _say(row: Row) -> str:
    return f"{row['label']} {text.spread(row['test']['nll'], 4)}"
