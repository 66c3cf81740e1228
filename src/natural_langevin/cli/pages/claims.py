"""The paper's claims about its table, compared with these numbers.

Two means differ when they lie more than two standard errors apart, over seeds; with one seed a
claim can only be said to agree or disagree with that run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from natural_langevin.cli.pages import text
from natural_langevin.cli.pages.table import Row, in_paper, lookup

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
    """The claims that these rows can speak to; none for a dataset the paper does not treat."""
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
