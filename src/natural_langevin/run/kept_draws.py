"""Which iterates a phase keeps, in which precision, and whether they fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from natural_langevin import schedules
from natural_langevin._internal import capacity
from natural_langevin._internal.tensorfile import Spec, size_in_bytes
from natural_langevin.posterior.plan import Plan
from natural_langevin.run.problem.validation import whole_number


def check_kept(burn_in: Any, thin: Any) -> tuple[int, int]:
    """Checks the two numbers by which iterates burn_in + thin, burn_in + 2 thin, ... are kept."""
    burn_in, thin = whole_number("burn_in", burn_in), whole_number("thin", thin)
    if burn_in < 0 or thin < 1:
        raise ValueError(f"burn_in must be >= 0 and thin >= 1, got {burn_in} and {thin}")
    return burn_in, thin


def check_run(steps: int, burn_in: int, thin: int) -> int:
    """How many iterates will be kept; ValueError where there would be none."""
    check_kept(burn_in, thin)
    if steps <= burn_in:
        raise ValueError(
            f"steps must be larger than burn_in, got steps={steps} and burn_in={burn_in}: "
            "no sample would be kept"
        )
    kept = (steps - burn_in) // thin
    if kept == 0:
        raise ValueError(
            f"thin={thin} is larger than the {steps - burn_in} steps after burn_in: "
            "no sample would be kept"
        )
    return kept


def check_given(**counts: Any) -> None:
    """What ``sample`` was given of ``steps``, ``burn_in``, ``thin`` and ``batch_size`` (None: left
    open), before anything else is settled."""
    given = {k: whole_number(k, value) for k, value in counts.items() if value is not None}
    if given.get("batch_size", 1) < 1:
        return  # the data are named in that error
    burn_in, thin = given.get("burn_in", 0), given.get("thin", 1)
    check_run(given.get("steps", max(burn_in, 0) + max(thin, 1)), burn_in, thin)


def check_thinning(
    steps: int, burn_in: int, thin: int, keep: Any, explores: schedules.Stages | None = None
) -> tuple[int, int]:
    """The thinning to use, and how many iterates it keeps: at most ``keep``, and none of the steps
    that explore.

    A run that dropped every second sample whenever it held more than ``keep``, and went on with
    twice the thinning, would end with burn_in + t, burn_in + 2t, ... for t = thin, 2 thin, 4 thin,
    ... Since the steps are known, that last t is used from the start."""

    def count(thin: int) -> int:
        ends = range(burn_in + thin, steps + 1, thin)
        return len(ends) if explores is None else sum(not explores(k - 1) for k in ends)

    check_run(steps, burn_in, thin)
    keep = None if keep is None else whole_number("keep", keep)
    if keep is not None and keep < 1:
        raise ValueError(f"keep must be a positive integer, got {keep}")
    while keep is not None and count(thin) > keep:
        thin *= 2
    if not count(thin):
        raise ValueError(
            f"every iterate that thin={thin} would keep of {steps} steps after burn_in={burn_in} "
            "is of an exploration stage: use a smaller thin, or steps that are whole cycles"
        )
    return thin, count(thin)


def check_every(every: Any) -> int | None:
    """Steps between two checkpoints."""
    if every is None:
        return None
    every = whole_number("every", every)
    if every < 1:
        raise ValueError(f"every must be a positive number of steps, got {every}")
    return every


def check_sample_dtype(value: Any, model_dtype: torch.dtype) -> torch.dtype:
    """How samples are stored: None is the model's own dtype."""
    if value is None:
        return model_dtype
    allowed = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    if value not in allowed or value.itemsize > model_dtype.itemsize:
        raise ValueError(
            "sample_dtype must be a floating dtype no wider than the model's "
            f"{model_dtype}, got {value!r}: give torch.bfloat16, or None for the model's own"
        )
    return value


def check_memory(specs: Mapping[str, Spec], place: str | Path, device: torch.device) -> None:
    """Refuses to keep more samples than there is room for, before the first step."""
    needed = sum(size_in_bytes(spec) for spec in specs.values())
    draws = next(iter(specs.values()))[1][1]
    if isinstance(place, Path):  # a run's own draws will be replaced, or are these very samples
        own = sum(p.stat().st_size for p in place.glob("draws-*.safetensors"))
        there = capacity.on_disk(place) + own
        name, remedy = f"the disk of {place}", "free some space"
    elif place == "device" and device.type == "cuda":
        there = capacity.in_memory(device)
        name, remedy = "the device", 'store them with store="cpu" or in a folder'
    else:
        there = capacity.in_memory(torch.device("cpu"))
        name, remedy = "the memory", "store them in a folder with store="
    if needed > there:
        raise ValueError(
            f"keeping {draws} samples of every chain takes {needed / 2**30:.3g} GiB and {name} has "
            f"{there / 2**30:.3g}: raise thin (or burn_in) or give keep= to keep fewer, use "
            f"sample_dtype=torch.bfloat16, or {remedy}"
        )


@dataclass(frozen=True)
class Phase:
    """One call of the loop: which iterates are kept. ``spent``: the steps of those before."""

    steps: int
    burn_in: int
    thin: int
    draws: int
    spent: int

    def continues(self, other: Phase) -> bool:
        """Whether it is the other with more steps."""
        same = self.burn_in == other.burn_in and self.thin % other.thin == 0
        return same and self.steps > other.steps


def phases(plan: Plan, explores: schedules.Stages | None = None) -> list[Phase]:
    """Each is the last unless it was too short (``until``). ``explores``: see ``schedules``."""
    found, spent = list[Phase](), 0
    for steps, burn_in, thin in plan.lengths():
        kept = check_thinning(steps, burn_in, thin, plan.keep, explores)
        found.append(Phase(steps, burn_in, *kept, spent))
        spent += steps
    return found
