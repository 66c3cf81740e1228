"""The audit: defaults held against references, NUTS, simulated truth, exact laws and provocations.

    python -m lab.audit [--parts errors laws ...] [--seeds 2] [--sets 24] [--data-sets 200]
        [--jobs 1] [--again]

One table: a row is a case, its figures, the goal, whether it is met, and what the run says itself
(``said``). A row that is missed and silent is the worst there is. Rows that the file holds already
are not run again, so that it can be made in pieces; with ``--again`` they are, and the figures
before stay in the row (``before``). With ``--jobs`` cases run side by side, and so do the seeds and
data sets of errors and coverage.

* errors: the standard deviation over seeds, divided by the Monte-Carlo error that a run reports, in
  the median over predictions and of the NLL; a linear model whose chains mix, a network whose
  chains do not
* laws: the posterior of a linear model, which is known; the same in other units; of 10^6 rows
* references: Stan's reference posteriors (see ``lab.posteriordb``), four chains
* nuts: small networks, some with gaps, ends and corners, against stored NUTS runs (see
  ``lab.defaults.against_nuts``), at all test rows and beyond the data; the NLL with the last layer
  integrated in both (``lab.defaults.last_layer``), beside that of the draws, where few of them
  decide it
* coverage: data sets drawn from the prior; how often 95 % intervals of the function hold it, inside
  of the data and outside; and of new targets, with eight rows and noise that is sampled
* provocations: runs that are wrong by construction, which must say so
"""

from __future__ import annotations

import argparse
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.command import CommandError, at_least, guarded, say, show
from lab.defaults import against_nuts, nuts_files
from lab.defaults.gaps import GAPS
from lab.defaults.small import PROBLEMS, Problem
from lab.jobs import side_by_side
from lab.results import open_results, write_results
from natural_langevin import Langevin, Posterior, likelihoods, models, priors
from natural_langevin.cli.experiments.origin import origin

Row = dict[str, Any]  # figures, goal, met, said
Case = tuple[str, Callable[[], Row]]
ROOT = Path(__file__).resolve().parent.parent


def wave(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A wave on [-1, 1] with noise of .2, (rows, 1) each."""
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(rows, 1, generator=g) - 1
    return x, torch.sin(4 * x) + 0.2 * torch.randn(x.shape, generator=g)


def _network() -> nn.Module:
    return models.mlp(1, 1, (16,), activation=nn.Tanh)


def _sample(
    network: nn.Module, data: tuple[Tensor, Tensor], *, seed: int = 0, steps: int | None = None,
    likelihood: likelihoods.Likelihood | None = None, **options: Any,
) -> Posterior:  # fmt: skip
    noise = likelihoods.Gaussian(0.2) if likelihood is None else likelihood
    sampler = Langevin(network, noise, seed=seed, **options)
    return sampler.sample(data, steps=steps, progress=False)


def _reported(network: Callable[[], nn.Module], steps: int, seed: int) -> dict[str, Any]:
    """What a run says, with the errors that it reports."""
    x, test = wave(60), wave(200, seed=1)
    run = _sample(network(), x, seed=seed, steps=steps, prior=priors.Gaussian(1.0))
    found = run.calibrated(False)
    said, scores = found.predict(test[0]), found.evaluate(*test)
    assert said.error is not None
    rhat = found.diagnose(test[0][:40], beyond=False).rhat
    return {
        "mean": said.mean.double().flatten(), "error": said.error.double().flatten(),
        "nll": scores.nll, "nll_error": scores.nll_error,
        "rhat": float(rhat.max()) if rhat is not None else math.nan,
    }  # fmt: skip


def spread_over_error(
    network: Callable[[], nn.Module], steps: int, seeds: int, jobs: int = 1
) -> Row:
    """Of ``seeds`` runs: sd over them / root mean square of what they report."""
    one = functools.partial(_reported, network, steps)
    runs = list(side_by_side(one, range(seeds), jobs))
    every = {k: torch.stack([torch.as_tensor(r[k]) for r in runs]).double() for k in runs[0]}
    ratio = every["mean"].std(0) / every["error"].square().mean(0).sqrt()
    of_nll = every["nll"].std() / every["nll_error"].square().mean().sqrt()
    middle = float(ratio.median())
    return {
        "figures": {
            "median": round(middle, 3), "quantile_90": round(float(ratio.quantile(0.9)), 3),
            "nll": round(float(of_nll), 3), "seeds": seeds, "steps": steps,
            "rhat": [round(r, 3) for r in every["rhat"].tolist()],
        },
        "goal": "median .8 to 1.2", "met": 0.8 <= middle <= 1.2,
    }  # fmt: skip


def _line() -> nn.Module:
    return nn.Linear(1, 1)


def errors(seeds: int, sets: int, jobs: int = 1) -> Iterator[Case]:
    """Mixed and unmixed runs; as many seeds as ``sets``, since a spread needs them."""
    yield "linear model, mixed", lambda: spread_over_error(_line, 3000, sets, jobs)
    yield "1-16-1, mixed badly", lambda: spread_over_error(_network, 2500, sets, jobs)


def exact_law(scale: float, seed: int, rows: int = 80) -> Row:
    """A linear model under N(0, 1) with known noise: mean and sd against the exact posterior."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=g)
    y = x @ torch.tensor([[1.0], [-0.5], [0.2]]) + 0.3 * torch.randn(rows, 1, generator=g)
    noise, width = 0.3 * scale, scale
    found = _sample(
        nn.Linear(3, 1, bias=False), (x, scale * y), seed=seed,
        likelihood=likelihoods.Gaussian(noise), prior=priors.Gaussian(width**2),
    )  # fmt: skip
    precision = x.double().T @ x.double() / noise**2 + torch.eye(3).double() / width**2
    covariance = torch.linalg.inv(precision)
    mean = covariance @ x.double().T @ (scale * y).double().flatten() / noise**2
    draws = found.samples["weight"].double().flatten(0, 1).flatten(1)
    sd = covariance.diagonal().sqrt()
    off, ratio = (draws.mean(0) - mean) / sd, draws.std(0) / sd
    looked = found.diagnose(x[:20], parameters=["weight"])
    of_weights = looked.parameters["weight"]
    ess = min(float(of_weights.ess.min()), float(len(draws)))
    assert of_weights.rhat is not None
    figures = {"mean": round(float(off.abs().max()), 3),
               "sd": round(float((ratio - 1).abs().max()), 3), "ess": round(ess),
               "largest rhat": round(float(of_weights.rhat.max()), 3)}  # fmt: skip
    met = figures["mean"] < 0.1 and figures["sd"] < 0.05 + 3 * (2 * ess) ** -0.5
    goal = "mean .1 sd, sd 5 % beyond 3 errors"
    return {"figures": figures, "goal": goal, "met": met, "said": looked.verdicts}


def laws(seeds: int, sets: int) -> Iterator[Case]:
    """The same law in units of 1 and of 1,000."""
    for seed in range(seeds):
        yield f"linear model, seed {seed}", functools.partial(exact_law, 1.0, seed)
    yield "linear model, units of 1,000", functools.partial(exact_law, 1000.0, 0)
    yield "linear model, 1,000,000 rows", functools.partial(exact_law, 1.0, 0, 1_000_000)


def references(seeds: int, sets: int) -> Iterator[Case]:
    """Every reference posterior, all data and a quarter in a batch."""
    from lab import posteriordb  # with the models of the tests

    def one(name: str, batch: str) -> Row:
        found = posteriordb.cell(name, "default", batch, 4, None)
        figures = {k: round(found[k], 3) for k in ("mean", "mean_error", "sd", "sd_error")}
        return {"figures": figures | {"steps": found["steps"]}, "met": found["passed"],
                "goal": "mean .1 sd, sd 5 %, beyond 3 errors",
                "said": found["verdicts"]}  # fmt: skip

    for name in posteriordb.MODELS:
        for batch in posteriordb.BATCHES:
            if batch == "all" or name != "eight schools":  # eight data
                yield f"{name}, {batch}", functools.partial(one, name, batch)


def nuts(seeds: int, sets: int) -> Iterator[Case]:
    """Problems whose NUTS run is stored."""
    folder = ROOT / "results" / "nuts"

    def one(make: Callable[[], Problem], seed: int) -> Row:
        found = against_nuts.compare(make(), seed, folder)
        names = ("distance_in_sd", "sd_ratio", "nll_difference", "nll_error", "nll_of_draws",
                 "seconds")  # fmt: skip
        figures = {k: round(found[k], 3) for k in names if k in found}
        met = figures["distance_in_sd"] < 0.15 and abs(figures["sd_ratio"] - 1) < 0.1
        goal = "means .15 sd, sds 10 %"
        if make in GAPS:
            figures["beyond"] = round(found["sd_ratio_beyond"], 3)
            met = met and abs(figures["beyond"] - 1) < 0.1 and figures["nll_difference"] < 0.05
            goal += ", also beyond the data; NLL .05"
        return {"figures": figures, "goal": goal, "met": met, "said": found["verdicts"]}

    for make in (*PROBLEMS, *GAPS):
        if nuts_files.stored_scale(make(), folder) is not None:
            for seed in range(seeds):
                yield f"{make().name}, seed {seed}", functools.partial(one, make, seed)


PLACES = {"inside": [-0.8, -0.4, 0.0, 0.4, 0.8], "-2": [-2.0], "2": [2.0], "3": [3.0]}


def _drawn(network: nn.Module, g: torch.Generator) -> nn.Module:
    """The network with weights from N(0, 1)."""
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=g))
    return network


def function_held(number: int) -> list[bool]:
    """A 1-8-1 network from its prior N(0, 1), 30 rows in [-1, 1], noise .1: whether 95 % intervals
    of the function hold it, place by place."""
    torch.set_num_threads(1)
    x = torch.tensor([v for values in PLACES.values() for v in values])[:, None]
    g = torch.Generator().manual_seed(number)
    truth = _drawn(models.mlp(1, 1, (8,), activation=nn.Tanh), g)
    rows = 2 * torch.rand(30, 1, generator=g) - 1
    with torch.no_grad():
        y, there = truth(rows) + 0.1 * torch.randn(30, 1, generator=g), truth(x).flatten()
    torch.manual_seed(number)
    found = _sample(
        models.mlp(1, 1, (8,), activation=nn.Tanh), (rows, y), seed=number,
        likelihood=likelihoods.Gaussian(0.1), prior=priors.Gaussian(1.0),
    )  # fmt: skip
    samples = found.predict(x, calibrated=False).samples
    assert samples is not None
    low, high = samples.flatten(1).quantile(torch.tensor([0.025, 0.975]), 0)
    return ((low < there) & (there < high)).tolist()


def targets_held(number: int) -> list[bool]:
    """A linear model of two inputs from N(0, 1), with eight rows and sigma from |N(0, 1)|: whether
    95 % intervals of new targets hold them, with sigma sampled."""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(number)
    truth, sigma = _drawn(nn.Linear(2, 1), g), float(torch.randn((), generator=g).abs())
    x = torch.randn(108, 2, generator=g)
    with torch.no_grad():
        y = truth(x) + sigma * torch.randn(108, 1, generator=g)
    torch.manual_seed(number)
    found = _sample(
        nn.Linear(2, 1), (x[:8], y[:8]), seed=number, prior=priors.Gaussian(1.0),
        likelihood=likelihoods.Gaussian(priors.HalfNormal(1.0)),
    )  # fmt: skip
    said = found.predict(x[8:], quantiles=(0.025, 0.975), calibrated=False).quantiles
    assert said is not None
    return ((said[0] < y[8:]) & (y[8:] < said[1])).flatten().tolist()


def held(one: Callable[[int], list[bool]], places: dict[str, int], sets: int, jobs: int) -> Row:
    """Over ``sets`` data sets, ``jobs`` at a time; ``places``: what the intervals are of, and how
    many there are of each. The error is that of data sets."""
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    found = list(side_by_side(one, range(sets), jobs))
    parts = torch.tensor(found).double().split(list(places.values()), 1)
    figures: dict[str, Any] = {}
    met = True
    for place, part in zip(places, parts, strict=True):
        each = part.mean(1)
        share = float(each.mean())
        error = max(float(each.std()), math.sqrt(0.95 * 0.05 / places[place])) / math.sqrt(sets)
        figures |= {place: round(share, 3), f"{place} error": round(error, 3)}
        met = met and abs(share - 0.95) < 0.02 + 2 * error
    return {"figures": figures | {"sets": sets}, "goal": ".93 to .97, beyond 2 errors", "met": met}


def coverage(seeds: int, sets: int, jobs: int = 1) -> Iterator[Case]:
    """Of functions, inside of the data and outside, and of targets with few rows."""
    places = {k: len(v) for k, v in PLACES.items()}
    yield "1-8-1, 30 rows, 95 %", lambda: held(function_held, places, sets, jobs)
    yield (
        "sigma with a prior, 8 rows, 95 %",
        lambda: held(targets_held, {"new targets": 100}, sets, jobs),
    )


class Funnel(nn.Module):
    """Neal's: v ~ N(0, 9), x_k ~ N(0, e^v); the data say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.x = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        energy = self.x.square().sum() * torch.exp(-self.v) / 2 + 2.5 * self.v
        return (energy + self.v.square() / 18).expand(len(x))


def _funnel() -> Row:
    began = time.perf_counter()
    found = _sample(
        Funnel(), (torch.zeros(1, 1), torch.zeros(1)), steps=4000, prior=priors.Flat(),
        likelihood=likelihoods.LogLoss(lambda outputs, y: outputs),
    )  # fmt: skip
    v = found.samples["v"][found.healthy].double()
    said = found.diagnose(torch.zeros(1, 1), parameters=["v"]).verdicts
    figures = {"sd": round(float(v.std()) if v.numel() else math.nan, 2),
               "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip
    right = abs(figures["sd"] / 3 - 1) < 0.1
    return {"figures": figures, "goal": "sd of v 3, or said", "met": right or bool(said),
            "said": said}  # fmt: skip


class CentredSchools(nn.Module):
    """Eight schools as they stand: theta_j ~ N(mu, e^(2 u)) beside what was measured of school j,
    (8 indicators, its error)."""

    def __init__(self) -> None:
        super().__init__()
        self.theta, self.mu = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(1))
        self.u = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        theta = x[:, :8] @ self.theta
        parts = [theta, x[:, 8], self.mu.expand_as(theta), self.u.expand_as(theta)]
        return torch.stack(parts, -1)


def _centred_loss(outputs: Tensor, y: Tensor) -> Tensor:
    theta, error, mu, u = outputs.unbind(-1)
    off, apart = (y.reshape(theta.shape) - theta) / error, (theta - mu) * (-u).exp()
    return (off.square() + apart.square()) / 2 + error.log() + u


def _centred() -> Row:
    y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])[:, None]
    error = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])[:, None]
    x = torch.cat([torch.eye(8), error], 1)
    prior = {"theta": priors.Flat(), "mu": priors.Gaussian(25.0), "u": priors.HalfCauchy(5.0)}
    found = _sample(CentredSchools(), (x, y), prior=prior,
                    likelihood=likelihoods.LogLoss(_centred_loss))  # fmt: skip
    tau = found.samples["u"][found.healthy].double().exp()
    said = found.diagnose(x, parameters=["u"]).verdicts
    figures = {"tau": round(float(tau.mean()), 2), "its sd": round(float(tau.std()), 2)}
    right = abs(figures["tau"] - 3.6) < 0.32 and abs(figures["its sd"] / 3.2 - 1) < 0.05
    named = any("non-centred" in v for v in said)
    return {"figures": figures, "goal": "tau 3.6, sd 3.2, or the remedy said",
            "met": right or named, "said": said}  # fmt: skip


def _two_modes() -> Row:
    """Chains begin at variances e^-6 and e^2 and are far too short to meet."""
    x, y = wave(40)
    starts = [{"weight": torch.zeros(2, 1), "bias": torch.tensor([0.0, s])}
              for s in (-6.0, 2.0, -6.0, 2.0)]  # fmt: skip
    found = _sample(
        nn.Linear(1, 2), (x, y), steps=100, init=starts, step_size=1e-5, chains=4,
        likelihood=likelihoods.HeteroscedasticGaussian(), prior=priors.Gaussian(10.0),
    )  # fmt: skip
    said = found.diagnose(x[:10]).verdicts
    return {"figures": {"verdicts": len(said)}, "goal": "output 1 is named",
            "met": any("output 1" in v for v in said), "said": said}  # fmt: skip


def _time_limit() -> Row:
    began = time.perf_counter()
    x, y = wave(200)
    found = Langevin(_network(), likelihoods.Gaussian("rmse")).sample(
        (x, y), seconds=5, progress=False
    )
    taken = time.perf_counter() - began
    before = time.perf_counter()
    found.diagnose(x[:40])
    figures = {"seconds": round(taken, 2), "diagnosis": round(time.perf_counter() - before, 2)}
    return {"figures": figures, "goal": "5.5 s of 5", "met": taken < 5.5}


def provocations(seeds: int, sets: int) -> Iterator[Case]:
    """What must not be silent, and what must end."""
    yield "a variance in two modes", _two_modes
    yield "seconds=5", _time_limit
    yield "Neal's funnel", _funnel
    yield "centred eight schools", _centred


PARTS: dict[str, Callable[..., Iterator[Case]]] = {
    "errors": errors, "laws": laws, "references": references, "nuts": nuts, "coverage": coverage,
    "provocations": provocations,
}  # fmt: skip


#: Parts whose cases are run one after the other, each in as many processes as there may be.
SPREAD = ("errors", "coverage")


def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """The table's rows: part, case, figures, those before, goal, met, what is said."""

    def shown(figures: dict[str, Any]) -> str:
        return ", ".join(f"{k} {v}" for k, v in figures.items() if k != "rhat")

    found = []
    for name, row in results["rows"].items():
        part, case = name.split(": ", 1)
        said = " ".join(row.get("said") or [])
        silent = "" if row["met"] or said else "silent"
        met = "yes" if row["met"] else "**no**"
        found.append((part, case, shown(row["figures"]), shown(row.get("before", {})), row["goal"],
                      met, f"{said[:90]}…" if len(said) > 90 else said or silent))  # fmt: skip
    return found


def _run(run: Callable[[], Row]) -> Row:
    began = time.perf_counter()
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    try:
        row = run()
    except (ValueError, RuntimeError, ArithmeticError) as error:  # a row like others
        row = {"figures": {}, "goal": "a run", "met": False, "said": [str(error)]}
    row["taken"] = round(time.perf_counter() - began, 1)
    return row | {"origin": origin("cpu")}


def _by_name(options: tuple[int, int], name: tuple[str, str]) -> tuple[str, Row]:
    """A case that another process is to run."""
    part, case = name
    return f"{part}: {case}", _run(dict(PARTS[part](*options))[case])


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.audit", description=__doc__)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=at_least(1), default=2)
    parser.add_argument("--sets", type=at_least(2), default=24, help="seeds of errors")
    parser.add_argument("--data-sets", type=at_least(2), default=200, help="of coverage")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="processes at a time")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--again", action="store_true", help="rows that are there as well")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "audit.json")
    options = parser.parse_args(arguments)
    settings = {"seeds": options.seeds, "sets": options.sets}
    results = open_results(options.out, settings, {}, CommandError)

    def wanted(part: str, **more: int) -> dict[str, Callable[[], Row]]:
        sets = options.data_sets if part == "coverage" else options.sets
        cases = dict(PARTS[part](options.seeds, sets, **more))
        known = () if options.again else results["rows"]
        return {c: cases[c] for c in cases if options.only in c and f"{part}: {c}" not in known}

    def keep(name: str, row: Row) -> None:
        say(name)
        known = results["rows"].get(name)
        if known is not None:
            row["before"] = known.get("before", known["figures"])
        results["rows"][name] = row
        write_results(options.out, results)

    beside = [part for part in options.parts if part not in SPREAD]
    names = [(part, case) for part in beside for case in wanted(part)]
    work = functools.partial(_by_name, (options.seeds, options.sets))
    for name, row in side_by_side(work, names, options.jobs):
        keep(name, row)
    for part in (p for p in options.parts if p in SPREAD):
        for case, run in wanted(part, jobs=options.jobs).items():
            keep(f"{part}: {case}", _run(run))
    columns = ("part", "case", "figures", "before", "goal", "met", "said")
    show(columns, rows(results))


if __name__ == "__main__":
    guarded(main)
