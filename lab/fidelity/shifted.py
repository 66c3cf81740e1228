"""The same draws on shifted and shuffled test images: what ``lab.shift`` asks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.fidelity.chain import Settings, predicted, seeded, start
from lab.fidelity.contenders import Contender
from lab.fidelity.problem import Problem, normalised, pixels
from lab.shift import table
from lab.shift.run import looked_at
from natural_langevin._internal.chains import Params

#: Networks that a prediction averages, at most: evenly among the draws.
MEMBERS = 40


def shifted(
    contender: Contender, problem: Problem, settings: Settings, draws: Sequence[Params]
) -> dict[str, Any]:
    """Scores of ``draws`` on the first ``settings.shift`` test images, at every strength of every
    shift; and AUROC against foreign images, and the same images with pixels in another order."""
    x, y = pixels(problem.test_x[: settings.shift].cpu()), problem.test_y[: settings.shift].cpu()
    network = start(contender, settings)
    some = draws[:: -(-len(draws) // MEMBERS)]

    def members(images: Tensor) -> Tensor:
        here = normalised(images).to(problem.test_x.device)
        with seeded(settings):  # the same masks on all images, whatever was looked at before
            return torch.stack([predicted(network, own, here, settings).cpu() for own in some])

    order = torch.randperm(x[0, ..., 0].numel(), generator=torch.Generator().manual_seed(0))
    shuffled = x.flatten(1, 2)[:, order].reshape(x.shape)
    others = {name: images[: len(x)] for name, images in problem.foreign.items()}
    return looked_at(members, x, y, others | {"shuffled": shuffled}) | {"members": len(some)}


def as_results(results: Mapping[str, Any]) -> dict[str, Any]:
    """What a fidelity run found of shifts, as ``lab.shift.table`` reads it: rows of the
    contenders that are done."""
    rows = {}
    for name, row in results["rows"].items():
        # The first look of an ensemble is at one network.
        for kind, title, look in (("shift", row["title"], -1), ("shift_of_one", "one network", 0)):
            if kind in row:
                seconds = row["looks"][look]["seconds"]
                rows[f"{name} {kind}"] = row[kind] | {"title": title, "seconds": seconds}
    foreign = [*results["settings"].get("foreign", []), "shuffled"]
    settings = results["settings"] | {"foreign": foreign}
    return {**results, "settings": settings, "rows": rows}


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """The page's text with the table of a fidelity run's shifts in its place."""
    return table.with_table(page, as_results(results), "shift-cifar")


def plot(results: Mapping[str, Any], path: Path) -> None:
    """NLL and calibration error against the strength of every shift."""
    table.plot(as_results(results), path)
