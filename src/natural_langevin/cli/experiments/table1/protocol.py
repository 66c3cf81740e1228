"""The protocol of the paper's table: what is run, with which settings, and what the paper reports.

Marceau-Caron & Ollivier 2017, "Experiments" and Table 1. Departures are named in
``Preset.deviations`` and travel into every result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from natural_langevin import preconditioners as P

# The paper's step sizes, best guess first: small presets try the first few.
EUCLIDEAN_GRID = (0.1, 1.0, 0.01, 0.001)
FISHER_GRID = (1e-3, 1e-2, 1e-4, 1e-1)
PRIOR_VARIANCES = (0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Preset:
    """Sizes of a run. The defaults are the paper's; ``pooled`` chains make the pooled row."""

    name: str
    steps: int = 60_000
    select_steps: int = 60_000
    extra_select_steps: int = 10_000  # rows beyond the paper
    batch_size: int = 100
    halve_every: int = 10_000
    schedules: tuple[str, ...] = ("halving", "k^(-1/3)")
    polynomial_offset: int = 2_000
    burn_in: int = 500
    thin: int = 100
    select_thin: int = 100
    hidden: tuple[int, ...] = (400, 400)
    step_sizes: int = 4  # how many of each method's grid, from the reliable middle outward
    prior_variances: tuple[float, ...] = PRIOR_VARIANCES
    dropout_rates: tuple[float, ...] = (0.2, 0.35, 0.5)
    train_images: int = 60_000  # the first so many, the last of them for validation
    validation: int = 10_000
    train_scored: int = 60_000
    train_score_every: int = 10  # of the kept iterates, how many the train columns average
    seeds: int = 5
    pooled: int = 12
    default_seeds: int = 2  # calls of the library's defaults
    default_steps: int | None = None  # of each; None: as many as they choose
    mc_dropout: int = 50
    deviations: tuple[str, ...] = ()


def fit_to(preset: Preset, train_size: int) -> Preset:
    """The preset for a training set of this size: smaller than MNIST's, a sixth is held out."""
    size = min(preset.train_images, train_size)
    if size >= 60_000:
        return preset
    return replace(
        preset,
        validation=min(preset.validation, size // 6),
        train_scored=min(preset.train_scored, size),
        deviations=(
            *preset.deviations,
            f"validation on the last {size // 6} of {size} training samples",
        ),
    )


PRESETS = {
    "paper": Preset(
        "paper",
        deviations=(
            "hyper-parameters are chosen by validation NLL (the paper: validation accuracy)",
            "the step size is halved every 10,000 updates as in the paper's table, or falls at the "
            "rate it calls asymptotically optimal, (1 + k/2000)^(-1/3): chosen on validation too",
            "that schedule's offset of 2,000 was fixed beforehand, not chosen on validation",
            "the baselines' grid has the paper's four Euclidean step sizes, halving alone",
            "rows beyond the paper choose their hyper-parameters after 10,000 updates",
            "the train columns of ensembles average every tenth kept iterate",
            "a choice with which any seed diverges gives way to the next best on validation",
            "seeds are chains of one run: same schedule, independent starts, minibatches and noise",
        ),
    ),
    # Chosen on validation images. With fewer images every row comes near the end of its learning,
    # where the paper's table stands; with all of them SGD would still be far from it.
    "quick": Preset(
        "quick",
        steps=3_600,
        select_steps=500,
        extra_select_steps=500,
        batch_size=50,
        halve_every=1_800,
        schedules=("halving",),
        train_score_every=1,
        burn_in=600,
        thin=150,
        select_thin=50,
        hidden=(100, 100),
        step_sizes=2,
        prior_variances=(0.1,),
        dropout_rates=(0.2, 0.5),
        train_images=20_000,
        train_scored=1_000,
        seeds=2,
        pooled=2,
        default_seeds=1,
        mc_dropout=10,
        deviations=(
            "hyper-parameters are chosen by validation NLL (the paper: validation accuracy)",
            "a network of 100-100 instead of 400-400 units, the first 20,000 training images, "
            "minibatches of 50",
            "3,600 updates instead of 60,000, 2 seeds, ensembles of 20 iterates",
            "hyper-parameters chosen after 500 updates, of two step sizes; the variance is the "
            "paper's",
            "2 pooled chains instead of 12; train columns on the first 1,000 images",
        ),
    ),
}


@dataclass(frozen=True)
class Method:
    """One sampler of the table. ``grid`` holds its step sizes, best guess first."""

    name: str
    label: str
    preconditioner: Callable[[], P.Preconditioner]
    grid: tuple[float, ...]
    in_paper: bool = False
    like: str | None = None  # takes its hyper-parameters from this method instead of selecting
    prior: str = "gaussian"
    bug: bool = False
    pools: bool = False
    note: str | None = None


#: The paper's settings: C follows every batch to the end, is applied to the batch it has just
#: seen, and has one damping. Labels drawn from the model, which the paper left untried, need more.
AS_IN_THE_PAPER: Any = {"fresh": True, "adapt": "always", "damping": 1e-4}
MODEL_TARGETS: Any = AS_IN_THE_PAPER | {"targets": "model", "damping": 1e-2}
RMSPROP = partial(P.RMSProp, **AS_IN_THE_PAPER)
QDOP = partial(P.QuasiDiagonalFisher, **AS_IN_THE_PAPER)

METHODS = (
    Method("euclidean", "Euclidean", P.Euclidean, EUCLIDEAN_GRID, in_paper=True),
    Method("rmsprop", "RMSProp", RMSPROP, (1e-2, 1e-3, 1e-1, 1e-4), in_paper=True),
    Method("dop", "DOP", partial(P.DiagonalFisher, **AS_IN_THE_PAPER), FISHER_GRID, in_paper=True),
    Method("qdop", "QDOP", QDOP, FISHER_GRID, in_paper=True, pools=True),
    Method(
        "qdop-nig",
        "QDOP, normal-inverse-gamma prior",
        QDOP,
        (1e-3,),
        like="qdop",
        prior="normal-inverse-gamma",
        note="no prior variance to choose; step size as chosen for QDOP",
    ),
    Method(
        "diagonal-fisher",
        "diagonal Fisher, sampled labels",
        partial(P.DiagonalFisher, **MODEL_TARGETS),
        FISHER_GRID,
    ),
    Method(
        "quasi-diagonal-fisher",
        "quasi-diagonal Fisher, sampled labels",
        partial(P.QuasiDiagonalFisher, **MODEL_TARGETS),
        FISHER_GRID,
    ),
    Method(
        "rmsprop-bug",
        "RMSProp with the footnote's bug",
        RMSPROP,
        (1e-2,),
        like="rmsprop",
        bug=True,
        note="noise variance 2 eta / N^2: this samples at temperature T = 1/N, not the posterior",
    ),
)

BY_NAME = {method.name: method for method in METHODS}

#: Table 1 of the paper: (train NLL, train accuracy, test NLL, test accuracy).
PAPER = {
    ("sgd", "point"): (0.0003, 100.00, 0.0584, 98.24),
    ("dropout", "point"): (0.0006, 100.00, 0.0519, 98.61),
    ("euclidean", "ensemble"): (0.0357, 99.63, 0.0726, 98.10),
    ("rmsprop", "ensemble"): (0.0415, 99.47, 0.0742, 98.17),
    ("dop", "ensemble"): (0.0292, 99.69, 0.0660, 98.13),
    ("qdop", "ensemble"): (0.0229, 99.85, 0.0591, 98.38),
    ("euclidean", "mean"): (0.0281, 99.12, 0.1240, 97.16),
    ("rmsprop", "mean"): (0.0299, 99.07, 0.1134, 97.21),
    ("dop", "mean"): (0.0243, 99.20, 0.1389, 97.20),
    ("qdop", "mean"): (0.0292, 99.60, 0.3429, 98.14),
}


def paper_numbers(method: str, estimate: str, dataset: str) -> dict[str, dict[str, float]] | None:
    """The paper's figures for a row, where it has them (it uses MNIST alone)."""
    numbers = PAPER.get((method, estimate)) if dataset == "mnist" else None
    if numbers is None:
        return None
    return {
        "train": {"nll": numbers[0], "accuracy": numbers[1]},
        "test": {"nll": numbers[2], "accuracy": numbers[3]},
    }
