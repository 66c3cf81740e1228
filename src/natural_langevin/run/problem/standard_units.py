"""Standard units: data of unusual size are standardised for the run.

House prices of 500,000, or an input column in thousands, do not fit the recipe's prior, N(0, 2 /
fan_in), nor its start. If inputs or targets are of such a size, the run uses them with mean 0 and
standard deviation 1, by column, and its draws are converted back to the user's units
(``posterior.units``). Data of usual size are not changed.

This is done only if it is exact and no prior or start was given, for data in memory, through the
layers that are found to read x and to output y, at any weights.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from natural_langevin.likelihoods import Likelihood, Scaled, weight_name
from natural_langevin.posterior.units import Columns, Units
from natural_langevin.run.problem import starts
from natural_langevin.run.problem.notices import LARGE, SMALL
from natural_langevin.run.problem.problem import Problem
from natural_langevin.run.problem.starts import Fitted

log = logging.getLogger("natural_langevin")

#: Numbers by which sizes are measured, and rows of them at least.
MOST_NUMBERS, FEWEST_ROWS = 2_000_000, 1_000
#: Rows by which layers are held against the network; what is added to its weights then, and how far
#: outputs may be apart, as a part of their size.
FEW, ADDED, APART = 16, (0.0, 0.1, 1.0), 1e-2
#: A column varies if it does by more than so many roundings of its size, as the data or the weights
#: round, whichever are coarser.
ROUNDINGS = 4
#: A column is rare where its farthest cell is more than so many standard deviations from its mean:
#: in units of that deviation, the cell would be a number that blows up whatever sees it.
RARE = 10.0
#: A cell is far out if it is more than FAR standard deviations from the mean of its column's other
#: cells (of a million rows none can be further from the mean of all), which are all but OTHERS of
#: them. The run takes it as RARE deviations from there: it would flatten its column.
FAR, OTHERS = 1e3, 0.01
#: A network has learned from targets as they are if it leaves at most this part of their variance:
#: random ones, whose outputs follow a large column, leave as little as nine tenths by chance.
LEFT = 0.5


def to_standard_units(problem: Problem, fitted: Fitted) -> Problem:
    """The problem with its data in standard units, whose ``origin`` is the user's; the same problem
    if data are of usual size, or the draws cannot be converted back."""
    units = find(problem, fitted)
    if units is None:
        return problem
    for name, one in (("inputs x", units.x), ("targets y", units.y)):
        if one is not None:
            log.info(
                "the %s are standardised, column by column, for the run, and losses are shown in "
                'these units; the posterior is in the given units (posterior.config["units"])', name
            )  # fmt: skip
    for column, least, largest in () if units.x is None else units.x.far:
        log.warning(
            "column %d of the inputs x has cells more than %g standard deviations from the others: "
            "the run takes them as %.4g or %.4g. Check them; dataclasses.replace(plan, units=None) "
            "leaves them as they are", column, FAR, least, largest,
        )  # fmt: skip
    return in_units(problem, units)


def in_units(problem: Problem, units: Units) -> Problem:
    """The problem with its data in these units."""
    x, y, _ = problem.rows()
    likelihood = units.standard_likelihood(problem.likelihood)
    inside = dataclasses.replace(
        problem, likelihood=likelihood, data=units.data(x, y), origin=problem, units=units
    )
    own = likelihood.own_parameter
    if own is None or units.width is None:
        return inside
    return dataclasses.replace(inside, prior=problem.prior | {units.width: own[1]})


def find(problem: Problem, fitted: Fitted) -> Units | None:
    """The units in which data of unusual size are of a usual one, where the layers allow it, and
    the network has not learned from the data as they are, by ``fitted``."""
    if not problem.in_memory or not all(p.requires_grad for p in problem.template.parameters()):
        return None
    x, y, _ = problem.rows()
    if not (_is_finite(x) and _is_finite(y) and _fits(problem, x, y)):
        return None  # refused elsewhere, by name
    units = _find(problem, x, y)
    return None if units is None or _has_learned(problem, x, y, fitted) else units


def _is_finite(values: Tensor) -> bool:
    return isinstance(values, Tensor) and len(values) > 0 and bool(values.isfinite().all())


def _fits(problem: Problem, x: Tensor, y: Tensor) -> bool:
    """Whether the targets are such as the likelihood takes, one for every row."""
    if problem.likelihood.raw_outputs and not isinstance(_said(problem, x), Tensor):
        return False  # several outputs, which a user's own function reads
    own = {k: p.detach() for k, p in problem.template.named_parameters()}
    try:
        problem.likelihood.check(_outputs(problem, own, x[:1].to(problem.device)), y)
    except (IndexError, RuntimeError, TypeError, ValueError):
        return False
    return len(x) == len(y)


def _find(problem: Problem, x: Tensor, y: Tensor) -> Units | None:
    model, likelihood = problem.template, problem.likelihood
    few = x[:: max(1, len(x) // FEW)][:FEW].to(problem.device)
    spread = likelihood.has_units and likelihood.outputs_per_target == 2
    found = Units(spread=spread, width=weight_name(likelihood) if likelihood.has_units else None)
    if not problem.signature.packed and x.is_floating_point():
        wanted = _of_inputs(model, x, _rounding(model, x))
        for one in wanted:
            if _agrees(problem, few, Units(x=one)):
                found = dataclasses.replace(found, x=one)
                break
    if likelihood.has_units and y.is_floating_point():
        for one in _of_targets(model, likelihood, y, _rounding(model, y)):
            if _agrees(problem, few, dataclasses.replace(found, x=None, y=one)):
                found = dataclasses.replace(found, y=one)
                break
    return None if found.x is None and found.y is None else found


def _rounding(model: nn.Module, values: Tensor) -> float:
    """The part of a number's size that is lost where it is rounded as data or as a weight."""
    dtypes = {values.dtype, *(p.dtype for p in model.parameters() if p.is_floating_point())}
    return ROUNDINGS * max(torch.finfo(dtype).eps for dtype in dtypes)


def _of_inputs(model: nn.Module, x: Tensor, rounding: float) -> Iterator[Columns]:
    """Columns of inputs that are not of size about one, for every layer that may see them. Of
    pixels the whole matters, and zeros beyond the edges stay zeros."""
    first = next((m for m in model.modules() if not [*m.children()]), None)
    if isinstance(first, _BatchNorm | nn.LayerNorm | nn.GroupNorm | nn.Embedding):
        return  # which scales them itself, or looks them up
    rows = _some(x)
    flat = rows.ndim == 2
    far = _far(x, rounding) if flat else ()
    rows = Columns("", (), (), far).tamed(rows)
    size = rows.square().mean(0).sqrt() if flat else rows.square().mean().sqrt().reshape(1)
    location, scale = _mean_and_size(rows, rounding) if flat else (torch.zeros_like(size), size)
    reach = (rows - location).abs().amax(0) if flat else size
    small = (reach < SMALL) & (reach > rounding * size) & (reach <= RARE * scale)
    unusual = (size > LARGE) | small
    scale = torch.maximum(scale, reach / RARE)
    if not bool(unusual.any()) and not far:
        return
    # A column of usual size stays as it is: a rare 1 among zeros would become a large number.
    location, scale = location.where(unusual, 0.0), scale.where(unusual, 1.0)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and flat and layer.in_features == rows.shape[1]:
            if layer._parameters.get("bias") is not None:
                yield Columns(name, tuple(location.tolist()), tuple(scale.tolist()), far)
            else:  # nothing takes up a location
                usable = torch.where(unusual & (size > 0), size, 1.0)
                yield Columns(name, (0.0,) * len(size), tuple(usable.tolist()), far)
        elif not flat and isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            yield Columns(name, (0.0,), tuple(scale.tolist()))


def _far(x: Tensor, rounding: float) -> tuple[tuple[int, float, float], ...]:
    """The columns with a cell far out, and the ends at which the run takes such cells."""
    largest = x.abs().amax(0).cpu().double()
    found: list[tuple[int, float, float]] = []
    if len(x) < FEW:
        return ()
    for column in (largest > LARGE).nonzero().flatten().tolist():
        cells = x[:, column].cpu().double()
        away = (cells - cells.median()).abs()
        near = away.kthvalue(len(cells) - max(1, round(OTHERS * len(cells)))).values
        others = cells[away <= near]
        mean, deviation = float(others.mean()), float(others.std(correction=0))
        varies = deviation > rounding * float(others.abs().max())
        if varies and float((cells - mean).abs().max()) > FAR * deviation:
            found.append((column, mean - RARE * deviation, mean + RARE * deviation))
    return tuple(found)


def _of_targets(
    model: nn.Module, likelihood: Likelihood, y: Tensor, rounding: float
) -> Iterator[Columns]:
    """Columns of targets that are not of size about one, for every layer that may say them."""
    rows = _some(y).flatten(1) if y.ndim > 1 else _some(y)[:, None]
    location, scale = _mean_and_size(rows, rounding, robust=likelihood.heavy_tails)
    size, spread = rows.square().mean(0).sqrt(), rows.std(0, correction=0)
    if not bool(((size > LARGE) | ((spread < SMALL) & (spread > rounding * size))).any()):
        return
    one_output = likelihood.outputs_per_target == 1
    # One width, for all columns; or noise that has no size to be multiplied by a column's.
    one_width = likelihood.known_width is not None or likelihood.own_parameter is not None
    if one_width or (one_output and not Scaled.takes(likelihood)):
        scale = scale.square().mean().sqrt().expand_as(scale)
    outputs = rows.shape[1] * likelihood.outputs_per_target
    for name, layer in reversed([*model.named_modules()]):
        fits = isinstance(layer, nn.Linear) and layer.out_features == outputs
        if fits and layer.bias is not None:
            yield Columns(name, tuple(location.tolist()), tuple(scale.tolist()))


def _some(values: Tensor) -> Tensor:
    """Rows to measure by, in float64."""
    rows = max(FEWEST_ROWS, MOST_NUMBERS // max(1, values[0].numel()))
    return values[:: -(-len(values) // rows)].cpu().double()


def _mean_and_size(rows: Tensor, rounding: float, *, robust: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every column, (column,) each; ``robust``: the median and the
    distance of the quartiles, for a likelihood that expects outliers. A column that does not vary
    is of the size of its mean, or 1."""
    location, scale = rows.mean(0), rows.std(0, correction=0)
    if robust:
        quarters = rows.quantile(torch.tensor([0.25, 0.5, 0.75]).to(rows), dim=0)
        between = (quarters[2] - quarters[0]) / 1.349
        usable = between > rounding * quarters.abs().amax(0)
        location = torch.where(usable, quarters[1], location)
        scale = torch.where(usable, between, scale)
    constant = scale <= rounding * rows.abs().amax(0)
    return location, torch.where(constant, location.abs().clamp_min(1.0), scale)


def _agrees(problem: Problem, x: Tensor, units: Units) -> bool:
    """Whether the network with weights in the user's units says of inputs in these what it says in
    standard units: at its own weights, and at others. How far a column lies from 0, in its own
    deviations, times the rounding is what no weights in the user's units can say."""
    model = problem.template
    x = x if units.x is None else units.x.tamed(x)
    rounded = max(
        _rounding(model, x) * max(abs(a) / b for a, b in zip(one.location, one.scale, strict=True))
        for one in (units.x, units.y)
        if one is not None
    )
    generator = torch.Generator().manual_seed(0)
    own = {k: p.detach() for k, p in model.named_parameters()}
    try:
        for added in ADDED:
            params = {
                k: p + added * torch.randn(p.shape, generator=generator).to(p)
                for k, p in own.items()
            }
            inside = _outputs(problem, params, units.data(x, x)[0] if units.x else x)
            outside = _outputs(problem, units.given(params), x)
            if units.y is not None:
                outside = _standard_outputs(units, outside)
            apart = float((outside - inside).abs().max())
            largest = float(inside.abs().max())
            if not apart <= APART * largest + rounded * max(largest, 1.0):
                return False
    except Exception as error:  # whatever a network says to inputs it was not made for
        log.debug("cannot convert back to the given units: %s", error)
        return False
    return True


def _standard_outputs(units: Units, outputs: Tensor) -> Tensor:
    assert units.y is not None
    flat = outputs.double().flatten(1) if outputs.ndim > 1 else outputs.double()[:, None]
    shift = torch.tensor(units.y.scale, dtype=torch.float64, device=flat.device).log()
    if units.width is not None:
        flat, last = flat[:, :-1], [flat[:, -1:] - shift[:1]]
        shift = torch.zeros_like(shift)
    else:
        last = []
    if units.spread:
        flat, log_variance = flat.chunk(2, -1)
        last.insert(0, log_variance - 2 * shift)
    return torch.cat([units.y.standard(flat), *last], -1).reshape(outputs.shape)


def _said(problem: Problem, x: Tensor) -> Any:
    """What the network gives for a row, whatever that is; None where it takes no such rows."""
    try:
        with torch.no_grad():
            return problem.signature.call(
                lambda args, kwargs: problem.template(*args, **kwargs), x[:1].to(problem.device)
            )
    except Exception:  # refused elsewhere, by name
        return None


def _outputs(problem: Problem, params: dict[str, Tensor], x: Tensor) -> Tensor:
    """Of the network with these parameters, in float64."""

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return functional_call(problem.template, params, args, kwargs)

    with torch.no_grad():
        found: Tensor = problem.signature.call(call, x.clone())
    return found.double()


def _has_learned(problem: Problem, x: Tensor, y: Tensor, fitted: Fitted) -> bool:
    """Whether the network predicts the data as they are: it is where chains will start."""
    rows = tuple(t[: fitted.rows].to(problem.device) for t in (x, y))
    if not problem.likelihood.has_units:
        return not starts.better(problem, (x, y), fitted)[1]
    said = _outputs(
        problem, {k: p.detach() for k, p in problem.template.named_parameters()}, rows[0]
    )
    if problem.likelihood.own_parameter is not None:
        said = said[..., :-1]
    said = said.chunk(problem.likelihood.outputs_per_target, -1)[0]
    targets = rows[1].double().reshape(len(said), -1)
    left = (targets - said.reshape(len(said), -1)).square().mean(0)
    return bool((left <= LEFT * targets.var(0, correction=0)).all())
