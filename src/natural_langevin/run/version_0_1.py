"""Checkpoints of version 0.1: what it noted of a run, put as this version does."""

from __future__ import annotations

import re
from typing import Any

#: Settings that 0.1 did not have, or that follow from others.
_NEW = ("alike", "shared_batches", "adapting")
#: What its metrics did with no option to say so: the paper's order, at every step.
_METRICS = {"fresh": "True", "adapt": "'always'"}
_ARGUMENT = re.compile(r"(\w+)=((?:[^,()]|\([^()]*\))+)")


def as_noted_today(there: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """The settings ``there``, with today's text where it means the same as that of 0.1.

    The table of rates was noted in another layout; step sizes and rates are compared by name."""
    found = dict(there)
    found |= {name: here[name] for name in _NEW if name in here}
    for name in there.keys() & here.keys() & {"likelihood", "preconditioner"}:
        old = str(there[name])
        if _same(old, str(here[name])):
            found[name] = here[name]
        elif "decay=" in old:  # the same text would mean something else today
            found[name] = f"{old[:-1]}, {', '.join(f'{k}={v}' for k, v in _METRICS.items())})"
    if "rates" in there and "rates" in here:
        found["rates"] = here["rates"]
    return found


def _same(old: str, new: str) -> bool:
    """Whether both are of one class, with the same arguments, those that 0.1 had not at what they
    would have been."""
    if old.split("(")[0] != new.split("(")[0]:
        return False
    theirs, ours = (dict(_ARGUMENT.findall(text.partition("(")[2])) for text in (old, new))
    implied = _METRICS if "decay" in theirs else {}
    if any(ours.get(name) != value for name, value in (theirs | implied).items()):
        return False
    return all(ours[name] == "None" for name in ours.keys() - theirs.keys() - implied.keys())
