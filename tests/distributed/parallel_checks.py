"""What several processes do together, against the same run in each of them alone."""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from typer.testing import CliRunner

from known_networks import not_checked_again
from natural_langevin import Langevin, Posterior, likelihoods, models, preconditioners, priors
from natural_langevin._internal.fingerprints import fingerprint
from natural_langevin.cli.app import app
from natural_langevin.distributed import Group, Layout
from natural_langevin.distributed.process_mesh import DataGroup
from natural_langevin.dynamics import Underdamped
from natural_langevin.recipe import step_size
from natural_langevin.recipe.settings import Trial
from natural_langevin.run import temperature_probe, time_limit, until
from short_recipe import SHORT, changed, shorten
from tables import flowers

DOUBLE = torch.float64
#: Options that belong to ``sample``; all others are the sampler's.
OF_RUN = ("batch_size", "burn_in", "thin", "store", "checkpoint", "every", "exchange")


def network(kind: str = "dense", dtype: torch.dtype = DOUBLE) -> nn.Module:
    """3 inputs and 3 outputs, or a small convolution over 1 x 4 x 4."""
    generator = torch.Generator().manual_seed(0)
    if kind == "dense":
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
    else:
        net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 2)
    return net.to(dtype)


def classes(kind: str = "dense", count: int = 40, dtype: torch.dtype = DOUBLE) -> Any:
    generator = torch.Generator().manual_seed(1)
    shape = (count, 3) if kind == "dense" else (count, 1, 4, 4)
    x = torch.randn(shape, generator=generator, dtype=DOUBLE).to(dtype)
    return x, x.flatten(1)[:, :3].argmax(1)


def real_targets() -> tuple[Tensor, Tensor]:
    x, _ = classes()
    return x, x.flip(1) + 0.1 * torch.sin(7 * x)


def make(parallel: Any, **settings: Any) -> Langevin:
    options = {"likelihood": likelihoods.Categorical(), "step_size": 5e-4, "chains": 1, "seed": 3}
    options |= {"compile": False, "model": network(), "parallel": parallel} | settings
    return Langevin(options.pop("model"), **options)


def run(parallel: Any, data: Any, *, steps: int, **settings: Any) -> Posterior:
    """``settings`` of the sampler, and of the run where they are ``OF_RUN``."""
    of_run = {k: settings.pop(k) for k in OF_RUN if k in settings}
    sampler = make(parallel, **settings)
    return sampler.sample(data, steps, progress=False, **({"batch_size": 10} | of_run))


def largest_difference(one: Posterior, other: Posterior, rows: Any = slice(None)) -> float:
    """Of means and last iterates, ``one`` having the chains ``rows`` of the other."""
    pairs = [
        (a[name], b[name][rows])
        for a, b in ((one.mean, other.mean), (one.last, other.last))
        for name in a
    ]
    learned = [(one.processes.here(v), other.learned[k][rows]) for k, v in one.learned.items()]
    return max(float((a - b).abs().max()) for a, b in pairs + learned)


# One chain, its minibatches shared ----------------------------------------------------------------

QUASI = preconditioners.QuasiDiagonalFisher
CASES: dict[str, dict[str, Any]] = {
    "euclidean": {"preconditioner": preconditioners.Euclidean()},
    "rmsprop": {"preconditioner": preconditioners.RMSProp()},
    "diagonal, drawn labels": {"preconditioner": preconditioners.DiagonalFisher(targets="model")},
    "quasi-diagonal": {"preconditioner": QUASI()},
    "full": {"preconditioner": preconditioners.FullFisher(damping=1e-2)},
}
#: Shorter, since they differ from the above only in how a minibatch is evaluated.
FEATURES: dict[str, dict[str, Any]] = {
    "convolution": {"model": network("convolution"), "data": classes("convolution")},
    "full, drawn labels": {"preconditioner": preconditioners.FullFisher(targets="model")},
    "learned noise, drawn targets": {
        "likelihood": likelihoods.Gaussian("rmse"), "data": real_targets(),
        "preconditioner": QUASI(targets="model"), "temperature": 0.1,
    },
    "clipped": {"clip": 0.05},
    "control variates": {"control_variates": 2},
    "in pieces": {"microbatch": 2, "preconditioner": QUASI(targets="model")},
    "fewer samples than processes": {"batch_size": 1},
    "chains with a batch each": {"chains": 2, "step_size": torch.tensor([5e-4, 1e-4])},
    "autocast": {"autocast": torch.bfloat16, "model": network(dtype=torch.float32),
                 "data": classes(dtype=torch.float32)},
}  # fmt: skip


def check_shared_minibatches(group: Group, folder: Path) -> dict[str, float]:
    """Batches of 7 never divide evenly. Two epochs of every metric, in float64.

    Each process runs some of the cases alone, and all of them with the others. That processes check
    a network together is seen in the other checks."""

    def of(name: str, where: Any) -> Posterior:
        options = {"thin": 6, "batch_size": 7, "steps": 12 if name in CASES else 6}
        options |= (CASES | FEATURES)[name]
        with pytest.MonkeyPatch.context() as patch:
            not_checked_again(patch)
            return run(where, options.pop("data", classes()), **options)

    names = [*CASES, *FEATURES]
    alone = {name: of(name, None) for name in names[group.rank :: group.world]}
    found = {}
    for name in names:
        shared = of(name, Layout(data=group.world))
        same_everywhere(group, name, shared)
        if name in alone:
            assert torch.equal(shared.trace[:, 0], alone[name].trace[:, 0])
            assert float((shared.trace - alone[name].trace).abs().max()) < 1e-3
            found[name] = largest_difference(shared, alone[name])
    return found


def same_everywhere(group: Group, name: str, posterior: Posterior) -> None:
    """Bit for bit, at all processes that share minibatches."""
    tensors = {f"{k} {n}": v for k in ("mean", "last") for n, v in getattr(posterior, k).items()}
    assert len(set(group.exchange(f"bits of {name}", fingerprint(tensors)))) == 1


def check_loader(group: Group, folder: Path) -> float:
    """A DataLoader whose last batch has one sample; and one that gives every process other data."""
    dataset = TensorDataset(*classes(count=13))

    def loader() -> Any:
        generator = torch.Generator().manual_seed(4)
        return DataLoader(dataset, batch_size=4, shuffle=True, generator=generator)

    options: dict[str, Any] = {"steps": 12, "thin": 12, "chains": 2}
    alone = run(None, loader(), **options)
    shared = run(Layout(data=group.world), loader(), **options)
    by_other = DistributedSampler(dataset, num_replicas=2, rank=0)
    with pytest.raises(ValueError, match="DistributedSampler"):
        run("auto", DataLoader(dataset, batch_size=4, sampler=by_other), **options)
    return largest_difference(shared, alone)


def check_single_steps(group: Group, folder: Path) -> float:
    """``sampler.step`` shares its batch too."""
    batches = [tuple(t[k : k + 5] for t in classes()) for k in range(3)]
    ends = []
    for where in (None, Layout(data=group.world)):
        sampler = make(where, num_data=40)
        state = sampler.init()
        for batch in batches:
            state, _ = sampler.step(state, batch)
        ends.append(torch.cat([p.flatten() for p in state.params.values()]))
    return float((ends[0] - ends[1]).abs().max())


def check_exchange_compiled(group: Group, folder: Path) -> float:
    """Two sums with something between them, by the compiler that writes C++ at one process and as
    it is written at the others: they exchange in the same order.

    Of the whole step, which takes a minute at every process, that is ``check_compiled``."""
    of_group = DataGroup(dist.group.WORLD, rank=group.rank, size=group.world)

    def exchange(own: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        found = of_group.add_up({"sum": own.cos(), "counts": counts})
        between = own.sin()
        return found["sum"] + between + of_group.add_up(own * 2), found["counts"]

    values = [torch.arange(6, dtype=DOUBLE).reshape(2, 3) + 10 * r for r in range(group.world)]
    counts = torch.tensor([1, group.rank])
    compiled = torch.compile(exchange, fullgraph=True, dynamic=False)
    run_here = compiled if group.rank == 0 else exchange
    ours, total = run_here(values[group.rank], counts)
    assert total.tolist() == [group.world, sum(range(group.world))]
    expected = sum(v.cos() + 2 * v for v in values) + values[group.rank].sin()
    return float((ours - expected).abs().max())


def check_compiled(group: Group, folder: Path) -> dict[str, Any]:
    """Compiled with the exchange inside, and what the log says of it."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("natural_langevin")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    model = nn.Linear(3, 3).double()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.1)
    options: dict[str, Any] = {"model": model, "steps": 10, "thin": 10, "batch_size": 7}
    options["preconditioner"] = preconditioners.DiagonalFisher()  # two sums, and little besides
    alone = run(None, classes(), **options)
    compiled = run(Layout(data=group.world), classes(), compile=True, **options)
    logger.removeHandler(handler)
    logger.setLevel(level)
    same_everywhere(group, "compiled", compiled)
    warned = [text for text in said if "failed" in text or "eagerly" in text]
    done = sum("compiled the step" in text for text in said)
    return {"difference": largest_difference(compiled, alone), "warned": warned, "compiled": done}


# Chains at several processes ----------------------------------------------------------------------


def different_chains(parallel: Any, **settings: Any) -> Posterior:
    """Three chains, each with its own step size, temperature, prior and starting point."""
    options: dict[str, Any] = {
        "chains": 3,
        "step_size": torch.tensor([5e-4, 1e-4, 2e-4]),
        "temperature": torch.tensor([1.0, 0.5, 2.0]),
        "prior": priors.Gaussian(variance=torch.tensor([0.1, 0.5, 1.0])),
        "init": "prior",
        "thin": 10,
    }
    data = settings.pop("data", classes())
    return run(parallel, data, **(options | settings))


def answers(posterior: Posterior) -> dict[str, Any]:
    """Everything a reader asks of a posterior, as plain numbers."""
    x, y = classes(count=12)
    predicted = posterior.predict(x, quantiles=(0.1, 0.9), chains="all")
    small = posterior.predict(x, keep_samples=False, batch_size=5, sample_batch=3, chains="all")
    sharp = posterior.predict(x, sharpness=1.5, chains="all")
    diagnosis = posterior.diagnose(x, data=classes(), parameters=["0.bias"], chains="all")
    assert diagnosis.configurational is not None
    networks = [
        posterior.mean_network(chains="all"),
        posterior.mean_network(chain=2),
        posterior.network(1, 4),
    ]
    # Both need every draw at one process.
    scores = replace(posterior.evaluate(x, y, chains="all"), nll_error=None, single_nll=None)
    return {
        "mean": predicted.mean.tolist(),
        "samples": predicted.samples.tolist(),  # type: ignore[union-attr]
        "quantiles": predicted.quantiles.tolist(),  # type: ignore[union-attr]
        "epistemic": predicted.epistemic.tolist(),
        "without samples": small.mean.tolist(),
        "sharpened": [sharp.mean.tolist(), sharp.samples.tolist()],  # type: ignore[union-attr]
        "running means": posterior.predict(x, estimate="mean", chains="all").mean.tolist(),
        "scores": json.loads(json.dumps(vars(scores), default=float)),
        "rhat": diagnosis.rhat.tolist(),  # type: ignore[union-attr]
        "ess": diagnosis.ess.tolist(),
        "distances": diagnosis.distances.tolist(),
        "bias": diagnosis.parameters["0.bias"].ess.tolist(),
        "temperature": list(diagnosis.configurational.temperature),
        "networks": [net(x).tolist() for net in networks],
        "trace": posterior.trace.tolist(),
        "diverged": posterior.diverged.tolist(),
        "chains": posterior.chains,
        "words": {k: v for k, v in posterior.config.items() if k != "effective_temperature"},
    }


def numbers(value: Any) -> list[float]:
    """All numbers in a tree of plain values, in order."""
    if isinstance(value, dict):
        return list(itertools.chain.from_iterable(numbers(v) for v in value.values()))
    if isinstance(value, list | tuple):
        return list(itertools.chain.from_iterable(map(numbers, value)))
    return [float(value)] if isinstance(value, int | float) else []


def compare(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """The largest difference of every answer."""
    found = {}
    assert one["words"] == other["words"]
    for name in one:
        a, b = (torch.tensor(numbers(x[name]), dtype=DOUBLE) for x in (one, other))
        assert a.shape == b.shape, name
        found[name] = float((a - b).nan_to_num().abs().max()) if len(a) else 0.0
    return found


def same_bits(one: Posterior, other: Posterior) -> bool:
    """Whether their draws here are equal to the last bit."""
    return all(torch.equal(v, other.samples[k]) for k, v in one.samples.items())


def check_spread_chains(group: Group, folder: Path) -> dict[str, Any]:
    """Three chains on two (or four) processes: the same draws and the same answers as on one.

    On two, runs count as long enough for their effective temperature to be measured."""
    length = {"steps": 60, "burn_in": 20, "thin": 4}
    if group.world > 2:
        length = {"steps": 20, "burn_in": 4, "thin": 2}  # eight draws, the fewest for a temperature
    with pytest.MonkeyPatch.context() as patch:
        if group.world == 2:
            patch.setattr(temperature_probe, "SMALL_PART", 5)
        alone, spread = (different_chains(where, **length) for where in (None, "auto"))
    own = spread.processes.own
    rows = slice(own.start, own.stop)
    of_one = folder / "answers.json"
    if group.rank == 0:
        of_one.write_text(json.dumps(answers(alone)))
    group.barrier("answers of one")
    said = json.loads(of_one.read_text())
    found = {"own": list(own), "draws": largest_difference(spread, alone, rows)}
    found["answers"] = compare(json.loads(json.dumps(answers(spread))), said)
    target = folder / "saved"
    spread.save(target)
    loaded = Posterior.load(target, network())
    found["loaded"] = max(
        float((v - alone.samples[k]).abs().max()) for k, v in loaded.samples.items()
    )
    found["loaded means"] = largest_difference(loaded, alone)
    found["answers of loaded"] = compare(loaded_answers(loaded), loaded_answers(alone))
    found["files"] = len(list(target.glob("[!.]*")))  # beside the lock
    found["heat"] = spread.config["effective_temperature"] is not None
    group.barrier("looked at the files")
    spread.save(target)  # again, over what is there
    found["files again"] = len(list(target.glob("[!.]*")))
    found["refused"] = refusals(spread)
    return found


def check_exchanged(group: Group, folder: Path) -> dict[str, Any]:
    """A ladder of three temperatures that reaches over both processes, with momentum and anchors:
    the same swaps as on one, also after a checkpoint."""
    options = {"chains": 3, "temperature": torch.tensor([1.0, 1.2, 1.5]), "exchange": 3}
    options |= {"dynamics": Underdamped(0.3), "control_variates": 4, "step_size": 5e-3}
    length = {"steps": 30, "burn_in": 6, "thin": 4}
    alone = run(None, classes(), **length, **options)
    spread = run("auto", classes(), **length, **options, checkpoint=folder, every=7)
    again = run("auto", classes(), **length, **options, checkpoint=folder, every=7)
    own = spread.processes.own
    rows = slice(own.start, own.stop)
    return {
        "draws": max(largest_difference(one, alone, rows) for one in (spread, again)),
        "same": alone.config["exchange"] == spread.config["exchange"] == again.config["exchange"],
        "rates": alone.config["exchange"]["rates"],
        "pooled": spread.chosen(None),
    }


def loaded_answers(posterior: Posterior) -> dict[str, Any]:
    x, _ = classes(count=12)
    return {
        "mean": posterior.predict(x, chains="all").mean.tolist(),
        "words": posterior.diverged.tolist(),
    }


def refusals(posterior: Posterior) -> list[str]:
    found = []
    for act in (posterior.to_arviz, lambda: posterior.network(7, 0)):
        try:
            act()
        except (ValueError, IndexError) as error:
            found.append(str(error))
    return found


def check_chains_in_a_folder(group: Group, folder: Path) -> dict[str, Any]:
    """Samples on the disk, from where they are saved; with a likelihood that learns."""
    options: dict[str, Any] = {"likelihood": likelihoods.Gaussian("rmse"), "data": real_targets()}
    options |= {"steps": 20, "burn_in": 10, "thin": 2}
    alone = different_chains(None, **options)
    spread = different_chains("auto", store=folder / "draws", **options)
    spread.save(folder / "saved from disk")
    loaded = Posterior.load(folder / "saved from disk", network())
    sigma = [spread.sigma, alone.sigma, loaded.sigma]
    return {
        "draws": max(float((v - alone.samples[k]).abs().max()) for k, v in loaded.samples.items()),
        "sigma": [s.tolist() for s in sigma if s is not None],
    }


def check_a_checkpoint(group: Group, folder: Path) -> dict[str, Any]:
    """Interrupted after 12 of 24 steps, and gone on with: the bits of the same processes without a
    break. Those of one process differ by rounding, where a BLAS treats a single matrix apart."""
    options: dict[str, Any] = {"burn_in": 0, "thin": 4, "checkpoint": folder / "checkpoint"}
    different_chains("auto", steps=24, every=12, **options)
    again = different_chains("auto", steps=24, every=12, **options)
    whole, alone = (different_chains(w, steps=24, burn_in=0, thin=4) for w in ("auto", None))
    own = again.processes.own
    return {
        "bits": same_bits(again, whole),
        "draws": largest_difference(again, alone, slice(own.start, own.stop)),
    }


def check_auto_step_size(group: Group, folder: Path) -> dict[str, Any]:
    """The pilot's choice, for chains that differ, and the draws: those of one process. A run that
    goes on from its checkpoint has no second pilot."""
    options: dict[str, Any] = {"step_size": "auto", "steps": 20, "burn_in": 10, "thin": 5}
    at = folder / "auto"
    with pytest.MonkeyPatch.context() as patch:
        trial = Trial(steps=8, chains=1, draws=4, folds=3)
        shorten(
            patch,
            changed(pilot={"steps": (1, 10)}, prior={"eager": trial}, descent={"rounds": (10, 20)}),
        )
        alone = different_chains(None, **options)
        spread = different_chains("auto", checkpoint=at, every=10, **options)
        shared, one = (
            run(where, classes(), step_size="auto", steps=10).plan.step_size
            for where in (Layout(data=group.world), None)
        )
        patch.setattr(step_size, "by_curvature", lambda *_, **__: pytest.fail("a second pilot"))
        again = different_chains("auto", checkpoint=at, every=10, **options)
    own = again.processes.own
    rows = slice(own.start, own.stop)
    return {
        "shared minibatches": [shared, one],
        "choices": [one.plan.step_size for one in (alone, spread, again)],
        "bits": same_bits(spread, again),
        "draws": largest_difference(spread, alone, rows),
    }


def check_whole_recipe(group: Group, folder: Path) -> dict[str, Any]:
    """A run with nothing given, in two parts: units, start, trial of priors, pilot, descent and
    calibration. Alone, with chains at every process, and with draws and checkpoints in folders."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    y = 1000 * x[:, :1].sin() + 50 + 100 * torch.randn(60, 1, generator=generator)

    shorter = changed(
        SHORT, length={"fewest": 60, "most": 240, "unmixed": 5}, end={"first_steps": 60},
        descent={"rounds": (20,)}, prior={"native": Trial(16, 1, 4, folds=3, rounds=2)},
    )  # fmt: skip

    def one(parallel: Any, **options: Any) -> Posterior:
        net = models.mlp(2, 1, (32,), activation=nn.Tanh)
        likelihood = likelihoods.Gaussian("rmse")
        sampler = Langevin(net, likelihood, chains=3, recipe=shorter, parallel=parallel)
        return sampler.sample((x, y), progress=False, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(until, "too_short", lambda *_: "R-hat")
        alone, spread = one(None), one("auto")
        saved = one("auto", store=folder / "draws", checkpoint=folder / "whole", every=50)
    own = spread.processes.own
    return {
        "decided": bool(alone.plan.units and alone.plan.descent)
        and len(alone.plan.lengths()) == 3,
        "plans": [one.plan == alone.plan for one in (spread, saved)],
        "bits": [
            all(torch.equal(v[own.start : own.stop], found.samples[k][...])
                for k, v in alone.samples.items())
            for found in (spread, saved)
        ],
        "predictions": [
            float((found.predict(x).mean - alone.predict(x).mean).abs().max())
            for found in (spread, saved)
        ],
    }  # fmt: skip


# What goes wrong ----------------------------------------------------------------------------------


def check_seconds(group: Group, folder: Path) -> list[Any]:
    """Clocks of two processes never agree: a second apart here."""
    clock, found = time_limit.clock, []
    with pytest.MonkeyPatch.context() as patch:
        paces = iter(range(1, 1 << 20))
        patch.setattr(time_limit, "clock", lambda: clock() + 1e-3 * group.rank * next(paces))
        for options in ({}, {"until": "ess:100000"}):
            sampler = make("auto", chains=3, step_size="auto", recipe=SHORT)
            posterior = sampler.sample(classes(), seconds=0.3, progress=False, **options)
            found.append([posterior.config["steps"], posterior.config["limit"], posterior.draws])
    return found


def check_diverging(group: Group, folder: Path) -> dict[str, Any]:
    """The last chain breaks, wherever it is; predictions go on without it."""
    step_size = torch.tensor([5e-4, 1e-4, 1e12])
    options: dict[str, Any] = {"step_size": step_size, "steps": 24, "burn_in": 4}
    alone, spread = (different_chains(where, **options) for where in (None, "auto"))
    x, _ = classes(count=12)
    pooled, one = (run.predict(x, chains="all").mean for run in (spread, alone))
    rest, other = (run.mean_network(chains="all")(x) for run in (spread, alone))
    difference, rest = pooled - one, rest - other
    return {
        "diverged": [spread.diverged.tolist(), alone.diverged.tolist()],
        "difference": max(float(difference.abs().max()), float(rest.abs().max())),
    }


def check_all_diverging(group: Group, folder: Path) -> None:
    different_chains("auto", step_size=1e12, steps=400)


def check_other_data(group: Group, folder: Path) -> None:
    x, y = classes()
    run("auto", (x + group.rank, y), steps=5, chains=2)


def check_other_weights(group: Group, folder: Path) -> None:
    model = network()
    with torch.no_grad():
        model[0].bias += 0.1 * group.rank  # type: ignore[index, operator]
    run("auto", classes(), steps=5, chains=2, model=model)


def check_bad_data_at_one(group: Group, folder: Path) -> None:
    x, y = classes()
    if group.rank == 1:
        x[3, 0] = torch.nan
    run("auto", (x, y), steps=5, chains=2)


def check_other_step_size(group: Group, folder: Path) -> None:
    run("auto", classes(), steps=5, chains=2, step_size=1e-4 * (1 + group.rank))


def check_wrong_layout(group: Group, folder: Path) -> None:
    make(Layout(chains=3, data=5))


def check_after_all_that(group: Group, folder: Path) -> float:
    """Errors leave the processes able to go on."""
    return check_single_steps(group, folder)


# The command line ---------------------------------------------------------------------------------


def check_train(group: Group, folder: Path) -> dict[str, Any]:
    """One process makes the folder, writes the quality and prints; all sample."""
    out, table = folder / "trained", folder / "flowers.csv"
    if group.rank == 0:
        flowers(table)
    group.barrier("the table is there")
    options = {"steps": 20, "hidden": 4, "chains": 3, "step-size": 0.003, "device": "cpu"}
    options |= {"folds": 2, "target": "kind"}
    words = ["train", str(table), f"--out={out}", *(f"--{k}={v}" for k, v in options.items())]
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch, changed(descent={"rounds": (10, 20)}))
        done, again = (CliRunner().invoke(app, words) for _ in range(2))
    assert done.exit_code == 0, done.output
    return {
        "printed": "negative log-likelihood" in done.output,
        "files": sorted(path.name for path in out.iterdir() if path.suffix == ".json"),
        "refused": again.exit_code,
        "why": "--resume" in again.output,
    }


#: The part of the table that is run here: two methods, from selection to the end.
