"""The held-out scores in plain words: "How sure is it?"

Whether it is as sure as it should be is judged against chance: a share of n rows is only known to
within its standard deviation, and a gap of less than two of them proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from natural_langevin.tabular.scoring import INTERVAL

Slices = Sequence[Mapping[str, Any]]
Families = tuple[Slices, Slices]

#: A gap of more standard deviations than this is not put down to chance.
CHANCE = 2.0
#: The confidence that the first sentence is about.
WANTED = 0.9
#: The best that can be said.
AS_IT_SHOULD_BE = "as sure as it should be, as far as"
#: Of fewer rows than this nothing is said beyond the counts.
FEW = 20


def sentences(quality: Mapping[str, Any]) -> list[str]:
    """Two sentences on the scores of ``quality``; none without labelled rows. Warnings come
    first."""
    found = warnings(quality)
    if quality.get("answers"):
        return found + _of_classes(quality["answers"], _families(quality))
    if quality.get("intervals"):
        return found + _of_numbers(quality)
    return found


def usable(quality: Mapping[str, Any]) -> str:
    """A sentence that predictions can be used, if held-out rows show it, else "". Later remarks on
    convergence then concern the weights only."""
    words = sentences(quality)
    if not words or warnings(quality) or AS_IT_SHOULD_BE not in " ".join(words):
        return ""
    return (
        f"Its predictions can be used: on these {quality['rows']:,} rows they are better than a "
        "blind guess's, and as sure as they should be."
    )


def warnings(quality: Mapping[str, Any]) -> list[str]:
    """Warnings if predictions are worse than a guess that ignores the inputs."""
    scores, blind = quality.get("scores", {}), quality.get("baseline", {})
    if not scores:
        return []
    found = []
    worse = [name for name in ("nll", "rmse", "accuracy") if _is_worse(name, scores, blind)]
    if "nll" in worse and _by_chance(quality):
        found.append(
            f"It predicts no better than a guess that ignores the inputs, as far as "
            f"{quality['rows']:,} rows can tell. Give it more rows, or columns that are related to "
            "the target."
        )
    elif "nll" in worse:
        found.append(
            "Do not use it: it predicts worse than a guess that ignores the inputs. Give it more "
            "rows, or columns that are related to the target."
        )
    elif "rmse" in worse:
        found.append(
            f"Its mean is further from the truth ({figure(scores['rmse'])}) than the average of "
            f"the training rows is ({figure(blind['rmse'])}), though its probabilities are better: "
            "use the median and the interval, and look for rows that are not like the others."
        )
    elif "accuracy" in worse:
        found.append(
            "Its most probable class is right less often than the commonest class is, though its "
            "probabilities are better: use the probabilities."
        )
    if outside := quality.get("intervals", {}).get("mean_outside", 0):
        found.append(
            f"In {outside:,} of {quality['rows']:,} rows the mean lies outside the interval, since "
            "the target is very skewed there: use the median."
        )
    return found


def _is_worse(name: str, scores: Mapping[str, Any], blind: Mapping[str, Any]) -> bool:
    """Whether a score is worse than the guess's; one that is not finite is."""
    if blind.get(name) is None:
        return False
    if scores.get(name) is None:
        return True
    higher = name == "accuracy"
    return bool((scores[name] < blind[name]) if higher else (scores[name] > blind[name]))


def _by_chance(quality: Mapping[str, Any]) -> bool:
    """Whether its probabilities are worse than the guess's by no more than chance explains."""
    mine, blind = quality["scores"].get("nll"), quality["baseline"]["nll"]
    error = quality.get("chance", {}).get("nll", 0.0)
    if mine is None:
        return False
    return error is None or quality["rows"] < FEW or bool(mine - blind <= CHANCE * error)


def _families(quality: Mapping[str, Any]) -> Families:
    """Slices by prediction and by column. There are many columns: judged together with these, the
    few predictions would have to be far off to be noticed."""
    return quality.get("slices", ()), quality.get("column_slices", ())


def _of_classes(found: Mapping[str, Any], slices: Families) -> list[str]:
    rows, right = found["answered"][0], found["right"][0]
    reached = [k for k, level in enumerate(found["sure"]) if found["answered"][k] and level]
    wanted = [k for k in reached if found["sure"][k] <= WANTED]
    if not wanted:
        first = "It is less than 50 % sure of every row."
    else:
        k = wanted[-1]
        first = "" if found["sure"][k] == WANTED else f"It is never {percent(WANTED)} sure. "
        n, good = found["answered"][k], found["right"][k]
        first += (
            f"If it only answers when it is at least {percent(found['sure'][k])} sure, it answers "
            f"{percent(n / rows)} of the rows ({n:,} of {rows:,}) and is right on "
            f"{percent(good / n)} of those ({good:,} of {n:,})."
        )
    said, share = found["confidence"], right / rows
    verdict = _judge(
        share - said, found["spread"], rows, "under-confident", "over-confident", slices
    )
    return [
        first,
        f"On average it says it is {percent(said)} sure, and it is right on {percent(share)} of "
        f"the rows: {verdict}.",
    ]


def _of_numbers(quality: Mapping[str, Any]) -> list[str]:
    rows, share = quality["rows"], quality["scores"]["coverage"]
    said = quality["intervals"].get("said", INTERVAL)  # of whole numbers more than they must hold
    spread = math.sqrt(max(0.0, said * (1 - said)) / rows)
    slices = _families(quality)
    verdict = _judge(share - said, spread, rows, "too wide", "too narrow", slices)
    ends = f"; the nominal share is {percent(said)}" if percent(said) != percent(INTERVAL) else ""
    surest, middle, least = (figure(value, 3) for value in quality["intervals"]["half"])
    blind = figure(quality["intervals"]["blind"], 3)
    return [
        f"Its {percent(INTERVAL)} intervals hold the truth in {round(share * rows):,} of {rows:,} "
        f"rows ({percent(share)}{ends}): {verdict}.",
        f"A typical interval is the prediction ± {middle} (± {surest} where it is surest, ± "
        f"{least} where it is least sure); ignoring the inputs it would be ± {blind}.",
    ]


def _judge(gap: float, spread: float, rows: int, above: str, below: str, slices: Families) -> str:
    """Of all rows together, and of slices of them: a slice that is too wide must not hide one that
    is too narrow.

    Several slices give chance several tries: each is allowed more."""
    if rows < FEW:
        return f"{rows} rows are too few to say whether it is as sure as it should be"
    if abs(gap) > CHANCE * spread:
        return f"{above if gap > 0 else below}, by more than chance explains{_worst(slices)}"
    wrong = _wrong(slices)
    if not wrong:
        return f"{AS_IT_SHOULD_BE} {rows:,} rows can tell"
    parts = [
        f"{above if one['share'] > one['said'] else below} for {one['name']} "
        f"({percent(one['share'])} of {one['rows']:,} rows instead of {percent(one['said'])})"
        for one in wrong
    ]
    return f"right on average, but {' and '.join(parts)}, by more than chance explains"


def _wrong(families: Families) -> list[Mapping[str, Any]]:
    """At most two, those by prediction first."""
    return [one for slices in families for one in _far(slices)][:2]


def _far(slices: Slices) -> list[Mapping[str, Any]]:
    """The worst first."""
    allowed = CHANCE + 0.5 * math.log(max(1, len(slices)))
    far = [
        (abs(one["share"] - one["said"]) / (one["spread"] + 0.5 / one["rows"]), one)
        for one in slices
        if one["rows"] >= FEW
    ]
    far = sorted((pair for pair in far if pair[0] > allowed), key=lambda pair: -pair[0])
    return [one for _, one in far]


def _worst(slices: Families) -> str:
    wrong = _wrong(slices)
    return f" (most for {wrong[0]['name']}: {percent(wrong[0]['share'])})" if wrong else ""


def figure(value: float, digits: int = 4) -> str:
    """So many digits, and thousands as people write them rather than powers of ten.

    >>> figure(538_213.4), figure(0.12345), figure(4.8e11, 3), figure(-20_000.0)
    ('538,200', '0.1235', '4.8e+11', '-20,000')
    """
    if 1e3 <= abs(value) < 1e9:
        return f"{float(f'{value:.{digits}g}'):,.0f}"
    return f"{value:.{digits}g}"


def percent(share: float) -> str:
    """Whole percents, but never 0 % or 100 % of what is merely close to it.

    >>> percent(0.833), percent(0.999), percent(1.0), percent(0.002)
    ('83 %', '99.9 %', '100 %', '0.2 %')
    """
    whole = round(100 * share)
    if whole in (0, 100) and share not in (0, 1):
        digits = 1 if 0.0005 <= share <= 0.9995 else 2
        return f"{min(99.99, max(0.01, 100 * share)):.{digits}f} %"
    return f"{whole} %"
