"""Stages: select a method's hyper-parameters, then train it finally. Each ends in plain JSON.

Selection trains on all but the last ``validation`` training images, the whole grid as the chains
of one run, and chooses by the ensemble's validation NLL. Final training uses all training images,
one chain per seed. Test images are scored once, after every choice has been made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from natural_langevin import likelihoods, metrics, models, priors, schedules
from natural_langevin._internal.chains import Params
from natural_langevin.cli.experiments.table1.protocol import Method, Preset
from natural_langevin.cli.experiments.table1.scores import (
    curve,
    diagram,
    finite,
    row,
    sizes_up_to,
    uncertain_inputs,
)
from natural_langevin.cli.experiments.table1.training import (
    DivergedError,
    Ensemble,
    Outcome,
    Scorer,
    train,
)
from natural_langevin.data import Dataset
from natural_langevin.langevin import Langevin

SELECT_SEED, FINAL_SEED = 1, 2
TRIES = 4
Result = dict[str, Any]


class StageError(RuntimeError):
    """A stage that cannot be brought to an end; the message says why."""


@dataclass(frozen=True)
class Bench:
    """What every stage works with."""

    preset: Preset
    data: Dataset
    device: torch.device
    folder: Path
    progress: bool = True

    @property
    def fit(self) -> tuple[Tensor, Tensor]:
        """The training data without the validation part."""
        cut = len(self.data.train_x) - self.preset.validation
        return self.data.train_x[:cut], self.data.train_y[:cut]

    @property
    def held_out(self) -> tuple[Tensor, Tensor]:
        """The validation part, on the device."""
        cut = len(self.data.train_x) - self.preset.validation
        return self.data.train_x[cut:].to(self.device), self.data.train_y[cut:].to(self.device)

    @property
    def scored(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The data that finished runs are scored on: part of the training data, all of the test."""
        n, data, device = self.preset.train_scored, self.data, self.device
        return {
            "train": (data.train_x[:n].to(device), data.train_y[:n].to(device)),
            "test": (data.test_x.to(device), data.test_y.to(device)),
        }

    def network(self) -> torch.nn.Sequential:
        """The preset's multilayer perceptron, freshly initialised."""
        return models.mlp(self.data.train_x.shape[1], self.data.num_classes, self.preset.hidden)

    def training(self, stage: str, rank: int = 0) -> dict[str, Any]:
        """How a stage shows its progress and where it is kept while under way; ``rank`` is that of
        its hyper-parameters."""
        return {
            "checkpoint": self.folder / f"{stage}.{rank}.checkpoint",
            "config": {"stage": stage, "rank": rank, **asdict(self.preset)},
            "title": stage,
            "progress": self.progress,
        }


def langevin(
    bench: Bench,
    method: Method,
    *,
    step_size: schedules.Schedule,
    prior_variance: Tensor,
    seed: int,
    num_data: int,
) -> Langevin:
    """The method's sampler, one chain per entry of ``prior_variance``."""
    prior: priors.Prior = (
        priors.NormalInverseGamma()
        if method.prior == "normal-inverse-gamma"
        else priors.Gaussian(variance=prior_variance)
    )
    return Langevin(
        bench.network(),
        likelihoods.Categorical(),
        prior=prior,
        preconditioner=method.preconditioner(),
        step_size=step_size,
        # The footnote's bug: noise variance 2 eta / N^2 is the posterior at temperature 1/N.
        temperature=1.0 / num_data if method.bug else 1.0,
        chains=len(prior_variance),
        init="fan_in",
        seed=seed,
        device=bench.device,
    )


def falling(preset: Preset, name: str, initial: float | Tensor) -> schedules.Schedule:
    """One of the protocol's two step-size schedules, by name."""
    if name == "halving":
        return schedules.halving(initial, every=preset.halve_every)
    return schedules.polynomial(initial, offset=preset.polynomial_offset)


def select(bench: Bench, method: Method) -> Result:
    """Validation scores over schedule x step size x prior variance, and the best cell."""
    preset = bench.preset
    step_sizes, variances = sorted(method.grid[: preset.step_sizes]), preset.prior_variances
    cells = list(product(preset.schedules, step_sizes, variances))
    initial = torch.tensor([eta for _, eta, _ in cells])
    by_name = {name: falling(preset, name, initial) for name in preset.schedules}
    masks = {name: torch.tensor([float(s == name) for s, _, _ in cells]) for name in by_name}

    def step_size(step: int) -> Tensor:
        return torch.stack([masks[n] * torch.as_tensor(by_name[n](step)) for n in by_name]).sum(0)

    sampler = langevin(
        bench,
        method,
        step_size=step_size,
        prior_variance=torch.tensor([variance for _, _, variance in cells]),
        seed=SELECT_SEED,
        num_data=len(bench.fit[0]),
    )
    ensemble, outcome = _train(
        bench, f"{method.name}-select", sampler, bench.fit, {"validation": bench.held_out},
        steps=preset.select_steps if method.in_paper else preset.extra_select_steps,
        thin=preset.select_thin,
    )  # fmt: skip
    accuracy, nll = cell_scores(ensemble.mean("validation"), bench.held_out[1])
    ranking = [
        {"step_size": cells[i][1], "prior_variance": cells[i][2], "schedule": cells[i][0]}
        for i in ranked(nll)
    ]
    chosen, schedule = ranking[0], ranking[0]["schedule"]
    size, columns = len(step_sizes) * len(variances), len(variances)
    grids = [
        {
            "method": method.name,
            "label": f"{method.label}, {name}" if len(preset.schedules) > 1 else method.label,
            "step_sizes": step_sizes,
            "prior_variances": list(variances),
            "accuracy": in_rows(accuracy[index * size : (index + 1) * size], columns),
            "nll": in_rows(nll[index * size : (index + 1) * size], columns),
            "chosen": chosen if name == schedule else None,
        }
        for index, name in enumerate(preset.schedules)
    ]
    return {"ranking": ranking, "grids": grids, "seconds": outcome.seconds}


Scores = list[float | None]


def cell_scores(p: Tensor, y: Tensor) -> tuple[Scores, Scores]:
    """Accuracy in percent and NLL of every chain's predictions; None for a diverged chain."""
    ok = torch.isfinite(p).flatten(1).all(1).tolist()
    accuracy = [100 * metrics.accuracy(q, y) if k else None for q, k in zip(p, ok, strict=True)]
    return accuracy, [metrics.nll(q, y) if k else None for q, k in zip(p, ok, strict=True)]


def in_rows(values: Scores, columns: int) -> list[Scores]:
    """A flat list cut into rows of so many columns."""
    return [values[start : start + columns] for start in range(0, len(values), columns)]


def ranked(nll: Scores) -> list[int]:
    """Cells from the lowest validation NLL up, without the diverged ones (None)."""
    alive = sorted((value, index) for index, value in enumerate(nll) if value is not None)
    if not alive:
        raise StageError("every point of the grid diverged: extend it to smaller step sizes")
    return [index for _, index in alive]


def final(bench: Bench, method: Method, ranking: list[dict[str, Any]]) -> Result:
    """Rows of one sampler at the best hyper-parameters with which every seed stays finite.

    Divergence shows in the training loss: no test image has a say in this.
    """
    return first_to_survive(
        method.label, ranking, lambda rank, chosen: _final(bench, method, chosen, rank)
    )


def first_to_survive(
    label: str,
    ranking: list[dict[str, Any]],
    attempt: Callable[[int, dict[str, Any]], Result],
) -> Result:
    """Trains with the best choice, the next best if a network diverges, and so on."""
    passed_over = []
    for rank, chosen in enumerate(ranking[:TRIES]):
        try:
            result = attempt(rank, chosen)
        except DivergedError as error:
            where = f"step size {chosen['step_size']:g}"
            passed_over.append(f"{error} networks diverged at {where}, the next best is used")
            continue
        for one in result["rows"]:
            one["note"] = "; ".join([*filter(None, [one["note"]]), *passed_over]) or None
        return result
    raise StageError(f"{label}: {'; '.join(passed_over)}")


def _final(bench: Bench, method: Method, chosen: dict[str, Any], rank: int) -> Result:
    """Sampling with the ``chosen`` settings on all training data, and the rows of the table."""
    preset, data = bench.preset, bench.data
    group = preset.pooled if method.pools else 1
    chains = preset.seeds * group
    sampler = langevin(
        bench,
        method,
        step_size=falling(preset, chosen["schedule"], chosen["step_size"]),
        prior_variance=torch.full((chains,), chosen["prior_variance"]),
        seed=FINAL_SEED,
        num_data=len(data.train_x),
    )
    everything = (data.train_x, data.train_y)
    ensemble, outcome = _train(
        bench, f"{method.name}-final", sampler, everything, bench.scored, rank=rank,
        steps=preset.steps, thin=preset.thin, stop_if_diverged=True,
    )  # fmt: skip
    singles = slice(0, chains, group)  # the first chain of every seed's group
    scored = bench.scored
    settings = {
        "step_size": chosen["step_size"],
        "schedule": chosen["schedule"],
        "prior_variance": None if method.prior != "gaussian" else chosen["prior_variance"],
        "temperature": float(sampler.frame.temperature[0]),
        "draws": int(ensemble.kept),
    }
    mean = {name: m[singles] for name, m in outcome.state.mean.items()}
    seconds = outcome.seconds / chains
    prefix = {"ensemble": "Ensemble", "mean": "PostMean", "pooled": f"{group} pooled chains"}
    rows = [
        row(
            method.name, estimate, f"{prefix[estimate]}, {method.label}", predict, scored,
            settings=settings, note=method.note,
            seconds=[seconds * (group if estimate == "pooled" else 1)],
            paper=method.in_paper and estimate != "pooled",
        )
        for estimate, predict in _estimates(ensemble, mean, scored, group).items()
    ]  # fmt: skip
    test, probes = ensemble.mean("test"), ensemble.probes[:, singles]
    result: Result = {
        "rows": rows,
        "seconds_per_update": seconds / preset.steps,
        "curve": curve(method.name, method.label, outcome.steps, outcome.losses[:, singles]),
        "reliability": diagram(
            method.name, "ensemble", method.label, test[0], scored["test"][1]
        ),
        "ensemble_size": _by_size(method, ensemble, singles),
        "probes": probes.tolist() if method.in_paper else None,
    }  # fmt: skip
    if group > 1:
        entropy = torch.special.entr(test[:group]).sum(2).mean(0)
        x, y = scored["test"]
        result["uncertain"] = uncertain_inputs(test[:group].mean(0), entropy, x, y)
    return result


def _estimates(
    ensemble: Ensemble, mean: Params, scored: dict[str, tuple[Tensor, Tensor]], group: int
) -> dict[str, Callable[[str], Tensor]]:
    """What a row of the table is of: class probabilities (seed, input, class) on a scored set, by
    its name. ``group``: how many chains are pooled into one ensemble of a seed."""
    found: dict[str, Callable[[str], Tensor]] = {
        "ensemble": lambda name: ensemble.mean(name)[::group],
        "mean": lambda name: ensemble.scorer.probabilities(mean, scored[name][0]),
    }
    if group > 1:
        found["pooled"] = lambda name: ensemble.mean(name).unflatten(0, (-1, group)).mean(1)
    return found


def _train(
    bench: Bench,
    stage: str,
    sampler: Langevin,
    data: tuple[Tensor, Tensor],
    sets: dict[str, tuple[Tensor, Tensor]],
    *,
    steps: int,
    thin: int,
    rank: int = 0,
    stop_if_diverged: bool = False,
) -> tuple[Ensemble, Outcome]:
    burn_in = min(bench.preset.burn_in, steps // 2)
    engine, state = sampler.prepare(data, steps=steps, batch_size=bench.preset.batch_size)
    ensemble = Ensemble(
        Scorer(sampler.model, sets),
        chains=sampler.chains,
        classes=bench.data.num_classes,
        draws=(steps - burn_in) // thin,
        train_every=bench.preset.train_score_every,
    )
    outcome = train(
        engine, state, steps=steps, burn_in=burn_in, thin=thin, ensemble=ensemble,
        stop_if_diverged=stop_if_diverged, **bench.training(stage, rank),
    )  # fmt: skip
    return ensemble, outcome


def _by_size(method: Method, ensemble: Ensemble, singles: slice) -> Result:
    sizes = sizes_up_to(int(ensemble.kept))
    nll = ensemble.ensemble_nll[:, singles].mean(1)
    return {
        "method": method.name,
        "label": method.label,
        "size": sizes,
        "nll": finite(nll[[size - 1 for size in sizes]]),
    }
