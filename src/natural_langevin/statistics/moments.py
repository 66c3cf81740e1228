"""Moments: the requested statistics from per-sample gradients, in bounded memory.

What each reducer is, ``requests`` says. All are means over samples, which do not depend on the
batch size. G_n is a sum over positions t (tokens, pixels, calls of the layer). ``sharing="exact"``
sums before it squares; "expand" treats every position as a sample, mean_n sum_t G_nt^2: cheaper,
and the same where there is one position. A bias and its weights are always treated alike: mixed,
J_ii - J_0i^2 / J_00 would become negative.

Kronecker factors of T positions, where the mean over samples of (sum_t delta_t a_t^T)^2 does not
factor: "expand" is mean_n (1/T) sum_t a_t a_t^T and mean_n sum_t delta_t delta_t^T; "reduce" (and
"exact") first averages a and adds up delta over positions. A gradient that is no single product
delta a^T (grouped or stacked maps, layers without a rule) gives the factors that agree with J in
both partial traces: sum_k u_k u_k^T / |u|^2 over inputs, mean_n G_n G_n^T over outputs.

Moments in a given basis are those of G_n itself, whatever ``sharing`` is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Params, per_unit
from natural_langevin._internal.gpu_kernels import allowed
from natural_langevin.statistics.requests import Basis, Group
from natural_langevin.statistics.rules import Outer, SampleGradient, Scatter, Stacked, Sum

Sharing = Literal["exact", "expand", "reduce"]
#: By the fields of ``Statistics``.
Moments = dict[str, dict[str, Any]]

#: Per-sample gradients are built for as many samples at once as fit into this many numbers: on a
#: GPU, where small pieces leave most of it idle, into a 512th of its memory if that is more.
CHUNK_NUMBERS = 1 << 24
NO_BASIS: Basis = {}


def chunk_numbers(device: torch.device) -> int:
    """How many numbers temporary tensors may hold."""
    if device.type != "cuda" or not allowed():  # what kernels are compared with has time
        return CHUNK_NUMBERS
    return max(CHUNK_NUMBERS, torch.cuda.get_device_properties(device).total_memory // (512 * 4))


class Averaging(NamedTuple):
    """How gradients of ``samples`` samples become means, as ``sharing`` says; temporary tensors
    take about ``numbers`` numbers. ``basis``: of the statistics "rotated". ``divisor``: what makes
    sums over samples means; 1, or another, where gradients are scaled accordingly, else None."""

    samples: int
    sharing: Sharing = "exact"
    numbers: int = CHUNK_NUMBERS
    basis: Basis = NO_BASIS
    divisor: int | Tensor | None = None

    def mean(self, total: Tensor) -> Tensor:
        """Of a sum over all samples."""
        divisor = self.samples if self.divisor is None else self.divisor
        return total if isinstance(divisor, int) and divisor == 1 else total / divisor


def layer_moments(
    gradients: dict[str, list[SampleGradient]],
    groups: Iterable[Group],
    shapes: Mapping[str, torch.Size],
    how: Averaging,
) -> Moments:
    """The statistics of parameters whose per-sample gradients rules have described.

    A group of which none was used is left out; ``shapes`` of the others are without chain axis."""
    result: Moments = {}
    for group in groups:
        forms = {k: gradients[k] for k in group.names if k in gradients}
        if forms:
            merge(result, _group_moments(group, forms, shapes, how))
    return result


def merge(result: Moments, found: Moments) -> None:
    """Adds ``found``, the statistics of other parameters, to ``result``."""
    for field, values in found.items():
        result.setdefault(field, {}).update(values)


def _group_moments(
    group: Group,
    forms: dict[str, list[SampleGradient]],
    shapes: Mapping[str, torch.Size],
    how: Averaging,
) -> Moments:
    result: Moments = {}
    rest, complete = set(group.requests), len(forms) == len(group.names)
    one_position = all(len(gs) == 1 and set(gs[0].positions()) == {1} for gs in forms.values())
    if complete and rest & {"second", "cross"}:
        if (how.sharing == "expand" or one_position) and _positional(group, forms):
            merge(result, _expanded(group, forms, how))
            rest -= {"second", "cross"}
        elif all(isinstance(g, Scatter) for gs in forms.values() for g in gs):
            lookups: Any = forms
            merged: Any = {k: [Scatter.joined(gs).merged()] for k, gs in lookups.items()}
            merge(result, _expanded(group, merged, how))
            rest -= {"second", "cross"}
        elif found := _by_kernel(group, forms, how):
            merge(result, found)
            rest -= {"first", "second", "cross"}
    if complete and "kronecker" in rest and _is_product(group, forms):
        maps: Any = forms[group.matrix]
        merge(result, _kronecker(group, maps, how))
        rest -= {"kronecker"}
        if "rotated" in rest and one_position:
            merge(result, _rotated(group, maps[0], how))
            rest -= {"rotated"}
    if not rest:
        return result

    def dense(part: slice) -> Params:
        found = {k: _total(g.dense(part) for g in gs) for k, gs in forms.items()}
        one = next(iter(found.values()))
        unused = set(group.names) - found.keys()  # by a forward pass that takes other layers
        return found | {k: one.new_zeros(len(one), *shapes[k]) for k in unused}

    work = sum(g.work() for gs in forms.values() for g in gs)
    maps = [g for w in group.weights for g in forms.get(w, ())]
    plain = all(isinstance(g, Outer) and g.unfold is None for g in maps)
    if complete and "cross" in rest and plain and len(shapes[group.name]) == 1:
        merge(result, {"cross": {group.name: _rows(group, forms, how)}})
        rest -= {"cross"}
    left = [group._replace(requests=frozenset(rest))]
    merge(result, dense_moments(dense, left, how, work))
    return result


def _rows(group: Group, forms: Any, how: Averaging) -> Params:
    """Bias rows of linear maps of what is stored; of patches, which are dear, G_n gives them."""
    every = slice(0, how.samples)
    bias = _total(g.dense(every) for g in forms[group.name])
    return {w: how.mean(_total(g.weighted(every, bias) for g in forms[w])) for w in group.weights}


def _by_kernel(group: Group, forms: Any, how: Averaging) -> Moments:
    """What is asked of maps but for matrices; nothing where no kernel takes them."""
    maps = {w: forms[w] for w in group.weights or (group.name,)}
    single = all(len(gs) == 1 for gs in maps.values())
    sums = {w: gs[0].square_sums() for w, gs in maps.items()} if single else {}
    if not all(sums.values()) or not single:
        return {}
    result: Moments = {}
    bias, total = None, "first" in group.requests
    if group.weights:
        bias = _total(g.dense(slice(0, how.samples)) for g in forms[group.name])
        alone = group._replace(weights=(), requests=group.requests & {"first", "second"})
        merge(result, pytree.tree_map(how.mean, _reduced(alone, {group.name: bias}, NO_BASIS)))
    rows: Params = {}
    for w, of in sums.items():
        found = [how.mean(s) for s in of(bias if "cross" in group.requests else None, total)]
        merge(result, {"second": {w: found.pop(0)}})
        if total:
            merge(result, {"first": {w: found.pop(0)}})
        rows.update(zip([w], found, strict=False))
    return result | ({"cross": {group.name: rows}} if rows else {})


# From per-sample gradients written out ------------------------------------------------------------


def dense_moments(
    dense: Callable[[slice], Params], groups: Sequence[Group], how: Averaging, work: int
) -> Moments:
    """Every reducer from ``dense(part)``: (n, *shape), which takes ``work`` numbers per sample, a
    chunk at a time."""

    def means(part: slice) -> Moments:
        sums: Moments = {}
        found = dense(part)
        for group in groups:
            merge(sums, _reduced(group, found, how.basis))
        return pytree.tree_map(how.mean, sums)

    chunk = max(1, how.numbers // work)
    total: Moments = {}  # a chunk's gradients are gone before the next one's are made
    for start in range(0, how.samples, chunk):
        more = means(slice(start, min(start + chunk, how.samples)))
        total = pytree.tree_map(torch.add, total, more) if total else more
    for w, factor in total.get("inputs", {}).items():
        trace = factor.diagonal(dim1=-2, dim2=-1).sum(-1)
        total["inputs"][w] = factor / trace.clamp_min(torch.finfo(factor.dtype).tiny)
    return total


def _reduced(group: Group, found: Params, basis: Basis) -> Moments:
    """Sums over the samples of ``found`` of what is asked of a group."""
    result: Moments = {}
    if "first" in group.requests:
        result["first"] = {k: _sum(found[k]) for k in group.names}
    if "second" in group.requests:
        result["second"] = {k: _square_sum(found[k]) for k in group.names}
    if "cross" in group.requests:
        bias = found[group.name]
        row = {w: _sum(per_unit(bias, found[w]) * found[w]) for w in group.weights}
        result["cross"] = {group.name: row}
    if group.requests & {"unit_blocks", "kronecker", "rotated"}:
        rows = unit_rows(group, found)
    if "unit_blocks" in group.requests:
        by_unit = rows.flatten(1, -2).transpose(0, 1)
        shape = (*rows.shape[1:], rows.shape[-1])
        result["blocks"] = {group.name: (by_unit.mT @ by_unit).reshape(shape)}
    if "kronecker" in group.requests:
        inputs, outputs = rows.flatten(0, 1), rows.transpose(0, 1).flatten(1)
        result["inputs"] = {group.matrix: inputs.mT @ inputs}
        result["outputs"] = {group.matrix: outputs @ outputs.mT}
    if "rotated" in group.requests:
        u_a, u_g = basis[group.matrix]
        result["rotated"] = {group.matrix: (u_g.mT @ rows @ u_a).square().sum(0)}
    return result


def _square_sum(values: Tensor) -> Tensor:
    """The sum of squares over samples. On a GPU in one pass over memory, where squares of their
    own would make three; a CPU's norm is slow."""
    if values.is_cuda and not torch.compiler.is_compiling():
        return _sum(values, lambda v: torch.linalg.vector_norm(v, dim=0).square())
    return _sum(values.square())


def _sum(values: Tensor, over: Callable[[Tensor], Tensor] = lambda v: v.sum(0)) -> Tensor:
    """The sum over samples, in the order in which they lie in memory: any other is slower."""
    strides = values.stride()
    order = sorted(range(values.ndim), key=lambda axis: (axis > 0, -strides[axis]))
    if order == [*range(values.ndim)]:
        return over(values)
    back = [order.index(axis) - 1 for axis in range(1, values.ndim)]
    return over(values.permute(order)).permute(back)


def unit_rows(group: Group, tree: Params) -> Tensor:
    """What belongs to every unit, bias first, side by side: (n, *units, 1 + I)."""
    first = tree[group.name]
    if not group.weights:
        return first.reshape(*first.shape[:2], -1)
    return torch.cat(
        [first[..., None], *(tree[w].reshape(*first.shape, -1) for w in group.weights)], dim=-1
    )


def split_rows(group: Group, rows: Tensor, like: Params) -> Params:
    """The inverse of ``unit_rows``."""
    names = group.names
    units = like[group.name].ndim if group.weights else 2
    sizes = [like[k].reshape(*like[k].shape[:units], -1).shape[-1] for k in names]
    parts = zip(names, rows.split(sizes, dim=-1), strict=True)
    return {k: part.reshape(like[k].shape) for k, part in parts}


# From forms that need not be written out ----------------------------------------------------------


def _positional(group: Group, forms: dict[str, list[SampleGradient]]) -> bool:
    """Whether positions can stand for samples: gradients that are products at every position, and
    a bias that is the sum over the same positions. Plain sums are exact at no extra cost."""
    if not group.weights:
        return not any(isinstance(p, Sum) for gs in forms.values() for g in gs for p in parts(g))
    places = [g.positions() for g in forms[group.name]]
    if not all(isinstance(part, Sum) for g in forms[group.name] for part in parts(g)):
        return False
    return all(
        [g.positions() for g in forms[w]] == places
        and all(isinstance(part, Outer) for g in forms[w] for part in parts(g))
        for w in group.weights
    )


def _expanded(group: Group, forms: dict[str, list[SampleGradient]], how: Averaging) -> Moments:
    result: Moments = {"second": {}}
    for name, calls in forms.items():
        row = "cross" in group.requests and name in group.weights
        found = [g.expanded(how.numbers, row=row) for g in calls]
        result["second"][name] = how.mean(_total(squares for squares, _ in found))
        if row:
            rows = _total(row for _, row in found if row is not None)
            result.setdefault("cross", {}).setdefault(group.name, {})[name] = how.mean(rows)
    return result


def _is_product(group: Group, forms: dict[str, list[SampleGradient]]) -> bool:
    """Whether the gradient is sum_t delta_t a_t^T of one linear map, its bias's sum_t delta_t."""
    maps = forms[group.matrix]
    single = all(isinstance(g, Outer) and g.groups == 1 for g in maps)
    return single and (not group.weights or _positional(group, forms))


def _kronecker(group: Group, maps: list[Outer], how: Averaging) -> Moments:
    """A and G of a linear map, whose calls are positions like any others."""
    inputs, outputs = [], []
    for part in maps[0].chunks(how.numbers):
        calls = [g.rows(part) for g in maps]
        a, delta = (torch.cat([call[i][:, 0] for call in calls], dim=1) for i in (0, 1))
        if group.weights:
            a = torch.nn.functional.pad(a, (1, 0), value=1.0)
        if how.sharing != "expand":
            a, delta = a.mean(1, keepdim=True), delta.sum(1, keepdim=True)
        share = 1 / (how.samples * a.shape[1])
        a, delta = a.flatten(0, 1), delta.flatten(0, 1)
        inputs.append(a.mT @ a * share)
        outputs.append(how.mean(delta.mT @ delta))
    return {
        "inputs": {group.matrix: _total(inputs)},
        "outputs": {group.matrix: _total(outputs)},
    }


def _rotated(group: Group, one: Outer, how: Averaging) -> Moments:
    """Of a linear map with one position: the squares of a product are a product of squares."""
    (u_a, u_g), found = how.basis[group.matrix], []
    for part in one.chunks(how.numbers):
        a, delta = (value.flatten(0, 2) for value in one.rows(part))
        if group.weights:
            a = torch.nn.functional.pad(a, (1, 0), value=1.0)
        found.append(how.mean((delta @ u_g).square().mT @ (a @ u_a).square()))
    return {"rotated": {group.matrix: _total(found)}}


def parts(gradient: SampleGradient) -> Sequence[SampleGradient]:
    """The rows of a stack one by one."""
    return gradient.parts if isinstance(gradient, Stacked) else (gradient,)


def _total(terms: Iterable[Tensor]) -> Tensor:
    """Their sum, without a zero to begin with (a number, which would make a copy)."""
    return reduce(operator.add, terms)
