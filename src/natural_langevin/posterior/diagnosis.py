"""The inputs of a diagnosis: quantities along the draws, temperatures, another run.

Everything that is followed is a function of a draw: the network's outputs at inputs given and at
probes around them (of classes, their probabilities, since logits have one number too many), and
components of parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin import diagnostics
from natural_langevin._internal.chains import likelihood_powers
from natural_langevin.data.checks import shown_to_model
from natural_langevin.diagnostics.kinetic import left_by_epochs
from natural_langevin.likelihoods import weight_name, with_own
from natural_langevin.likelihoods.predictive import predicted_by
from natural_langevin.metrics.summary import ClassificationScores, RegressionScores
from natural_langevin.posterior import networks
from natural_langevin.posterior.draws import Chains, Draws
from natural_langevin.posterior.ensemble import some_outputs
from natural_langevin.posterior.plan import Plan
from natural_langevin.posterior.units import in_standard_units
from natural_langevin.priors import PriorLike, resolve

#: Components of a parameter that are followed, where it is asked for.
MOST_COMPONENTS = 1000
#: Class probabilities that move by less are of no consequence.
LEAST_PROBABILITY = 1e-3
#: Networks evaluated at a time on many inputs.
SOME = 16


def diagnose(
    posterior: Draws,
    x: Any,
    *,
    data: Any,
    prior: PriorLike | None,
    parameters: Iterable[str],
    beyond: bool,
    batch_size: int,
    max_draws: int,
    chains: Chains,
    halved: Draws | None,
    scores: ClassificationScores | RegressionScores | None,
) -> diagnostics.Diagnosis:
    """See ``Posterior.diagnose``. ``scores``: on rows that the run has not seen."""
    config, processes = posterior.config, posterior.processes
    pooled = posterior.chosen(chains)
    x = torch.cat(list(posterior.signature.batches(x, batch_size)))
    around: dict[str, Tensor] = {}
    if beyond and not posterior.signature.packed:
        tables = (nn.Embedding, nn.EmbeddingBag)
        looked_up = any(isinstance(m, tables) for m in posterior.template.modules())
        around = probes(x, looked_up=looked_up)
    inputs = {"predictions": x} | around
    sizes = [len(rows) for rows in inputs.values()]
    every = followed(posterior, torch.cat(list(inputs.values())), pooled)
    some = diagnostics.some_components(posterior.samples, tuple(parameters), MOST_COMPONENTS)
    own = weight_name(posterior.likelihood)
    if own is not None:  # no output of the user's network, and the same at all inputs
        every, some = every[..., :-1], some | {own: posterior.samples[own]}
    predictions, *elsewhere = every.split(sizes, 2)
    heat = pair = None
    if data is not None:
        heat = _configurational(posterior, data, prior, batch_size, max_draws)
    if halved is not None:
        pair = _against(posterior, halved, x, pooled)
    return diagnostics.diagnose(
        predictions,
        {c: int(s) for c, s in enumerate(posterior.diverged.tolist()) if s >= 0},
        healthy=pooled,
        thin=config.get("thin"),
        parameters={
            _name(k, v, posterior.samples[k]): processes.gather_chains(v)[pooled]
            for k, v in some.items()
        },
        beyond=dict(zip(around, elsewhere, strict=True)),
        inputs=inputs,
        least=LEAST_PROBABILITY if posterior.likelihood.discrete else 0.0,
        noise=_noise(posterior, pooled, predictions),
        funnel=diagnostics.funnel(posterior.samples, pooled) if processes.whole else None,
        thrown=_thrown(posterior, pooled) if processes.whole else None,
        kinetic=_kinetic(config),
        configurational=heat,
        temperature=min([t for t in _temperatures(posterior).tolist() if t > 0], default=1.0),
        halved=pair or {},
        shared=bool(config.get("shared_batches")),
        adapting=bool(config.get("adapting")),
        advice=diagnostics.Advice(config),
        scores=scores,
    )


def followed(posterior: Draws, x: Tensor, pooled: Sequence[int]) -> Tensor:
    """See ``Posterior.followed``; of the chains ``pooled``, wherever they are."""
    own, rows = posterior.processes.own, list[Tensor]()
    with torch.no_grad(), shown_to_model(x):
        size = networks.at_once(posterior.samples, SOME, batch_size=1000, inputs=len(x))
        for outputs, learned in some_outputs(posterior, x, range(len(own)), own, size):
            said = predicted_by(posterior.likelihood, outputs, learned)
            rows.append(outputs if said.classes is None else said.value)
    values = torch.cat(rows).unflatten(0, (len(own), posterior.draws))
    return posterior.processes.gather_chains(values)[list(pooled)]


def _name(name: str, some: Tensor, whole: Tensor) -> str:
    """Of a parameter; of evenly spaced components of one, which they are."""
    if some.shape == whole.shape:
        return name
    return f"{name}[::{-(-whole[0, 0].numel() // some.shape[2])}]"


def _noise(
    posterior: Draws, pooled: Sequence[int], predictions: Tensor
) -> diagnostics.Noise | None:
    """The widths that a likelihood with units has learned, whose logarithms n numbers determine up
    to a variance of T / (2 n)."""
    rows = posterior.config.get("num_data")
    if not posterior.likelihood.has_units or len(posterior.learned) != 1 or not rows:
        return None
    (squares,) = posterior.learned.values()
    sizes = squares[list(pooled)].double().sqrt().cpu().numpy()
    temperature = float(_temperatures(posterior)[list(pooled)].max())
    numbers = rows * predictions[0, 0, 0].numel()
    return diagnostics.Noise(sizes, (temperature / (2 * numbers)) ** 0.5)


def _thrown(posterior: Draws, pooled: Sequence[int]) -> diagnostics.Thrown | None:
    """Where the losses of the trace are those of all rows, at the temperature 1."""
    config, chains = posterior.config, len(posterior.diverged)
    rows, batch = config.get("num_data"), config.get("batch_size")
    plan = Plan.from_config(config)
    if plan is None or not plan.by_recipe or not rows or not batch or batch < rows:
        return None
    power = likelihood_powers(config, chains)
    if bool((power != 1).any()) or bool((_temperatures(posterior) != 1).any()):
        return None
    weights = sum(v[0, 0].numel() for v in posterior.samples.values())
    return diagnostics.thrown(
        posterior.trace, burn_in=config["burn_in"], rows=rows, weights=weights, chains=pooled
    )


def _kinetic(config: Mapping[str, Any]) -> diagnostics.Kinetic | None:
    """The temperature of steps as the run measured it. Minibatches of the recipe's own epochs heat
    less than independent ones, at most as much as in the steepest direction that it met."""
    measured = config.get("effective_temperature")
    if measured is None:
        return None
    found = diagnostics.Kinetic.from_dict(measured)
    plan, size = Plan.from_config(config), config.get("batch_size")
    if found.minibatch is None or plan is None or not size or config.get("shared_batches"):
        return found
    eta, steepest = plan.step_size, plan.measured.get("curvature")
    if not isinstance(eta, float) or steepest is None:
        return found
    left = left_by_epochs(eta * steepest, config.get("rows", config["num_data"]), size)
    return replace(found, minibatch=found.minibatch * left)


def _against(
    posterior: Draws, other: Draws, x: Tensor, pooled: Sequence[int]
) -> dict[str, diagnostics.Halved]:
    """This run and one at half the step size: predictions, and some weights of each tensor."""
    theirs = other.chosen(None)
    mine = diagnostics.some_components(posterior.samples, ("*",))
    half = diagnostics.some_components(other.samples, ("*",))
    return diagnostics.halved.compare(
        {"predictions": followed(posterior, x, pooled)}
        | {k: posterior.processes.gather_chains(v)[list(pooled)] for k, v in mine.items()},
        {"predictions": followed(other, x, theirs)}
        | {k: other.processes.gather_chains(v)[theirs] for k, v in half.items()},
    )


def _temperatures(posterior: Draws) -> Tensor:
    """T of every chain, as far as the configuration says: (chain,)."""
    value = posterior.config.get("temperature", 1.0)
    return torch.as_tensor(value, dtype=torch.float64).expand(posterior.chains)


def _configurational(
    posterior: Draws, data: Any, prior: PriorLike | None, batch_size: int, max_draws: int
) -> diagnostics.Configurational | None:
    """The temperature of the samples, as they were sampled; None where no chain has one."""
    posterior, units = in_standard_units(posterior)
    processes, chains = posterior.processes, posterior.chains
    like = {name: value[0] for name, value in posterior.last.items()}
    device = next(iter(like.values())).device
    known = posterior.prior
    if prior is not None:
        known = resolve(with_own(prior, posterior.likelihood), like, chains, device=device)
    if known is None:
        raise ValueError(
            "the temperature of the samples needs the prior, which a saved posterior does not "
            "hold: diagnose(x, data=data, prior=priors.Gaussian(...))"
        )
    temperature, power = _temperatures(posterior), likelihood_powers(posterior.config, chains)
    warm = [c for c in posterior.healthy if temperature[c] > 0]
    if not warm:
        return None
    here = {name: processes.here(value) for name, value in posterior.learned.items()}
    x, y = (t.to(device) for t in units.data(*posterior.signature.split(data)))
    return diagnostics.configurational.measure(
        posterior.call, posterior.likelihood, known, posterior.samples, here, temperature,
        (x, y), like=next(iter(posterior.last.values())), chosen_chains=warm,
        of_all=processes.gather_chains, batch_size=batch_size,
        num_data=processes.here(float(posterior.config.get("num_data", len(x))) * power).to(device),
        max_draws=max_draws,
    )  # fmt: skip


#: Probes of every kind.
COUNT = 16
#: Distances from the middle are multiplied by this.
WIDER = 1.5
#: Of more columns the corners are too far from everything.
MOST_COLUMNS = 16


def probes(x: Tensor, *, looked_up: bool = False) -> dict[str, Tensor]:
    """Inputs around rows x (n, columns), where a posterior may not have converged although it has
    at the rows; none where x is not such a table of numbers. At most ``COUNT`` of every kind: the
    middle of two rows; the rows furthest from the mean, half as far again; corners of the box of
    all rows, half as wide again; columns shuffled each by itself. A column of at most two values is
    not moved beyond them, nor, with ``looked_up``, whole numbers that may be numbers of levels.

    >>> {k: v.flatten().tolist() for k, v in probes(torch.tensor([[0.0], [1.0], [2.0]])).items()}
    {'between rows': [1.5, 1.0, 0.5], 'outside': [-0.5, 2.5, 1.0], 'corners': [-0.5, 2.5]}
    """
    if x.ndim != 2 or not x.is_floating_point() or len(x) < 3 or not bool(x.isfinite().all()):
        return {}
    moving = torch.tensor([len(column.unique()) > 2 for column in x.T], device=x.device)
    if looked_up:
        moving &= (x != x.round()).any(0)
    if not bool(moving.any()):
        return {}
    mean, scale = x.mean(0), x.std(0).clamp_min(torch.finfo(x.dtype).tiny)
    generator = torch.Generator().manual_seed(0)
    some = x[torch.randperm(len(x), generator=generator)]
    far = (((x - mean) / scale)[:, moving].square().sum(1)).argsort(descending=True)
    found = {
        "between rows": (some + some.roll(1, 0)) / 2,
        "outside": mean + WIDER * (x[far] - mean),
    }
    columns = int(moving.sum())
    if columns <= MOST_COLUMNS:
        low, high = x.amin(0), x.amax(0)
        middle, reach = (low + high) / 2, WIDER * (high - low) / 2
        signs = _signs(columns, generator).to(x)
        ends = x.new_zeros(len(signs), len(moving))
        ends[:, moving] = signs
        found["corners"] = middle + reach * ends
    if columns > 1:
        orders = [torch.randperm(len(x), generator=generator) for _ in range(x.shape[1])]
        found["shuffled columns"] = torch.stack(
            [column[order] for column, order in zip(x.T, orders, strict=True)], 1
        )
    rows = {k: v[:COUNT] for k, v in found.items()}
    # What must not be moved is a real row's.
    return {k: torch.where(moving, v, _cycled(x, len(v))) for k, v in rows.items()}


def _signs(columns: int, generator: torch.Generator) -> Tensor:
    """-1 and 1 of corners: all of them where they are at most ``COUNT``, else some."""
    if 2**columns <= COUNT:
        return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=columns)))
    return 2.0 * torch.randint(2, (COUNT, columns), generator=generator) - 1


def _cycled(x: Tensor, count: int) -> Tensor:
    return x[torch.arange(count, device=x.device) % len(x)]
