"""Stages: select a method's hyper-parameters, then train it finally. Each ends in plain JSON.

Selection trains on all but the last ``validation`` training images, the whole grid as the chains
of one run, and chooses by validation accuracy of the ensemble (the paper's criterion; NLL breaks
ties). Final training uses all training images, one chain per seed. Test images are scored once,
after every choice has been made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from natural_langevin import likelihoods, metrics, models, priors, schedules
from natural_langevin.data import Dataset
from natural_langevin.experiments.ensemble import Ensemble, Scorer
from natural_langevin.experiments.loop import Outcome, run_in_pieces
from natural_langevin.experiments.protocol import Method, Preset
from natural_langevin.experiments.scores import (
    finite,
    reliability,
    score,
    sizes_up_to,
    summary,
    uncertain_inputs,
)
from natural_langevin.sampler import Langevin

SELECT_SEED, FINAL_SEED = 1, 2
Result = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What every stage works with."""

    preset: Preset
    data: Dataset
    device: torch.device
    folder: Path
    compile: bool | str = "auto"
    progress: bool = True

    @property
    def fit(self) -> tuple[Tensor, Tensor]:
        cut = len(self.data.train_x) - self.preset.validation
        return self.data.train_x[:cut], self.data.train_y[:cut]

    @property
    def held_out(self) -> tuple[Tensor, Tensor]:
        cut = len(self.data.train_x) - self.preset.validation
        return self.data.train_x[cut:].to(self.device), self.data.train_y[cut:].to(self.device)

    @property
    def scored(self) -> dict[str, tuple[Tensor, Tensor]]:
        n, data, device = self.preset.train_scored, self.data, self.device
        return {
            "train": (data.train_x[:n].to(device), data.train_y[:n].to(device)),
            "test": (data.test_x.to(device), data.test_y.to(device)),
        }

    def network(self) -> torch.nn.Sequential:
        return models.mlp(self.data.train_x.shape[1], self.data.num_classes, self.preset.hidden)

    def checkpoint(self, stage: str) -> Path:
        return self.folder / f"{stage}.checkpoint.safetensors"


def langevin(
    bench: Bench,
    method: Method,
    *,
    step_size: Tensor,
    prior_variance: Tensor,
    seed: int,
    num_data: int,
) -> Langevin:
    """The method's sampler, one chain per entry of ``step_size``."""
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
        step_size=schedules.halving(step_size, every=bench.preset.halve_every),
        # The footnote's bug: noise variance 2 eta / N^2 is the posterior at temperature 1/N.
        temperature=1.0 / num_data if method.bug else 1.0,
        chains=len(step_size),
        init="fan_in",
        seed=seed,
        device=bench.device,
        compile=bench.compile,
    )


def select(bench: Bench, method: Method) -> Result:
    """Validation accuracy and NLL over the grid, and the pair with the best accuracy."""
    preset = bench.preset
    step_sizes = sorted(method.grid[: preset.step_sizes])
    pairs = list(product(step_sizes, preset.prior_variances))
    steps = preset.select_steps if method.in_paper else preset.extra_select_steps
    sampler = langevin(
        bench,
        method,
        step_size=torch.tensor([eta for eta, _ in pairs]),
        prior_variance=torch.tensor([variance for _, variance in pairs]),
        seed=SELECT_SEED,
        num_data=len(bench.fit[0]),
    )
    ensemble, outcome = _train(
        bench, f"{method.name}-select", sampler, bench.fit, {"validation": bench.held_out},
        steps=steps, thin=preset.select_thin,
    )  # fmt: skip
    _, y = bench.held_out
    probabilities = ensemble.mean("validation")
    shape = (len(step_sizes), len(preset.prior_variances))
    accuracy, nll = grid_scores(probabilities, y, shape)
    best = best_pair(accuracy, nll)
    return {
        "method": method.name,
        "label": method.label,
        "step_sizes": step_sizes,
        "prior_variances": list(preset.prior_variances),
        "accuracy": accuracy,
        "nll": nll,
        "chosen": {
            "step_size": step_sizes[best[0]],
            "prior_variance": preset.prior_variances[best[1]],
        },
        "seconds": outcome.seconds,
    }


Grid = list[list[float | None]]


def grid_scores(p: Tensor, y: Tensor, shape: tuple[int, int]) -> tuple[Grid, Grid]:
    ok = torch.isfinite(p).flatten(1).all(1)
    accuracy = [
        100 * metrics.accuracy(q, y) if good else None for q, good in zip(p, ok, strict=True)
    ]
    nll = [metrics.nll(q, y) if good else None for q, good in zip(p, ok, strict=True)]
    rows, columns = shape
    cut = [slice(r * columns, (r + 1) * columns) for r in range(rows)]
    return [accuracy[c] for c in cut], [nll[c] for c in cut]


def best_pair(accuracy: Grid, nll: Grid) -> tuple[int, int]:
    """Highest accuracy, then lowest NLL. Diverged cells (None) never win."""
    cells = [
        (value, -(nll[r][c] or 0.0), -r, -c)
        for r, row in enumerate(accuracy)
        for c, value in enumerate(row)
        if value is not None
    ]
    if not cells:
        raise RuntimeError("every point of the grid diverged: extend it to smaller step sizes")
    *_, r, c = max(cells)
    return -r, -c


def final(bench: Bench, method: Method, chosen: dict[str, float]) -> Result:
    """Rows of one sampler at its chosen hyper-parameters, over seeds."""
    preset, data = bench.preset, bench.data
    group = preset.pooled if method.pools else 1
    chains = preset.seeds * group
    ones = torch.ones(chains)
    sampler = langevin(
        bench,
        method,
        step_size=chosen["step_size"] * ones,
        prior_variance=chosen["prior_variance"] * ones,
        seed=FINAL_SEED,
        num_data=len(data.train_x),
    )
    everything = (data.train_x, data.train_y)
    ensemble, outcome = _train(
        bench, f"{method.name}-final", sampler, everything, bench.scored,
        steps=preset.steps, thin=preset.thin,
    )  # fmt: skip
    singles = slice(0, chains, group)  # the first chain of every seed's group
    scored = bench.scored
    mean = {name: m[singles] for name, m in outcome.state.mean.items()}
    settings = {
        "step_size": chosen["step_size"],
        "prior_variance": None if method.prior != "gaussian" else chosen["prior_variance"],
        "temperature": float(sampler._dynamics.temperature[0]),
        "draws": int(ensemble.kept),
    }
    estimates: dict[str, Callable[[str], Tensor]] = {
        "ensemble": lambda name: ensemble.mean(name)[singles],
        "mean": lambda name: ensemble.scorer.probabilities(mean, scored[name][0]),
    }
    if group > 1:
        estimates["pooled"] = lambda name: ensemble.mean(name).unflatten(0, (-1, group)).mean(1)
    seconds = outcome.seconds / chains
    rows = [
        _row(method, estimate, predict, scored, settings, seconds, group)
        for estimate, predict in estimates.items()
    ]
    test = ensemble.mean("test")
    result: Result = {
        "rows": rows,
        "seconds_per_update": seconds / preset.steps,
        "curve": _curve(method, outcome, ensemble, preset, singles),
        "reliability": {
            "method": method.name, "estimate": "ensemble", "label": method.label,
            **reliability(test[0], scored["test"][1]),
        },
        "ensemble_size": _by_size(method, ensemble, singles),
        "probes": ensemble.probes[:, singles].tolist() if method.in_paper else None,
    }  # fmt: skip
    if group > 1:
        entropy = torch.special.entr(test[:group]).sum(2).mean(0)
        x, y = scored["test"]
        result["uncertain"] = uncertain_inputs(test[:group].mean(0), entropy, x, y)
    return result


def _train(
    bench: Bench,
    stage: str,
    sampler: Langevin,
    data: tuple[Tensor, Tensor],
    sets: dict[str, tuple[Tensor, Tensor]],
    *,
    steps: int,
    thin: int,
) -> tuple[Ensemble, Outcome]:
    burn_in = min(bench.preset.burn_in, steps // 2)
    engine, state = sampler.prepare(data, steps=steps, batch_size=bench.preset.batch_size)
    ensemble = Ensemble(
        Scorer(sampler.model, sets),
        chains=sampler.chains,
        classes=bench.data.num_classes,
        draws=(steps - burn_in) // thin,
    )
    outcome = run_in_pieces(
        engine,
        state,
        steps=steps,
        burn_in=burn_in,
        thin=thin,
        keep=lambda s: ensemble.add(s.params),
        kept_state=ensemble.state(),
        checkpoint=bench.checkpoint(stage),
        title=stage,
        progress=bench.progress,
    )
    return ensemble, outcome


def _row(
    method: Method,
    estimate: str,
    predict: Callable[[str], Tensor],
    scored: dict[str, tuple[Tensor, Tensor]],
    settings: dict[str, Any],
    seconds: float,
    group: int,
) -> Result:
    prefix = {"ensemble": "Ensemble", "mean": "PostMean", "pooled": f"{group} pooled chains"}
    row: Result = {
        "method": method.name,
        "estimate": estimate,
        "label": f"{prefix[estimate]}, {method.label}",
        "group": "paper" if method.in_paper and estimate != "pooled" else "extra",
        "note": method.note,
        "settings": settings,
        "seconds": summary([seconds * (group if estimate == "pooled" else 1)]),
    }
    for name, (_, y) in scored.items():
        p = predict(name)
        good = torch.isfinite(p).flatten(1).all(1)
        if not good.all():
            row["note"] = f"{int((~good).sum())} of {len(p)} seeds diverged and are left out"
        if not good.any():
            raise RuntimeError(f"{row['label']}: every seed diverged at {settings}")
        row[name] = score(p[good], y)
    return row


def _curve(
    method: Method, outcome: Outcome, ensemble: Ensemble, preset: Preset, singles: slice
) -> Result:
    return {
        "method": method.name,
        "label": method.label,
        "step": outcome.steps,
        "loss": finite(outcome.losses[:, singles].mean(1)),
    }


def _by_size(method: Method, ensemble: Ensemble, singles: slice) -> Result:
    sizes = sizes_up_to(int(ensemble.kept))
    nll = ensemble.ensemble_nll[:, singles].mean(1)
    return {
        "method": method.name,
        "label": method.label,
        "size": sizes,
        "nll": finite(nll[[size - 1 for size in sizes]]),
    }
