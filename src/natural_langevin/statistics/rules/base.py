"""``Rule``: from one call of a layer to the per-sample gradients of its parameters.

A rule does not square or average anything. It says of every parameter how its per-sample gradient
G_n = d loss_n / d parameter is composed, in one of four forms that need not be written out:

    Outer     G_n = sum_t delta_nt a_nt^T          linear maps and convolutions (t: positions)
    Scatter   G_n[v] = sum_t [v = index_nt] delta_nt                                  embeddings
    Sum       G_n = sum_t d_nt                     biases, gains, anything else
    Stacked   several of these, one above the other along the parameter's first axis

``moments`` turns them into Fisher statistics. Because per-sample gradients add up, a layer called
several times and a weight shared by several layers need nothing from the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin._internal.chains import Units
from natural_langevin._internal.gpu_kernels import Trial, allowed, tried, usable


class Call(NamedTuple):
    """One call of a layer: what went in, and the gradient of what came out.

    Every tensor has the samples first. ``inputs`` and ``deltas`` hold the tensors among the
    arguments and results, in order; ``input`` and ``delta`` are the first of each."""

    inputs: tuple[Tensor, ...]
    deltas: tuple[Tensor, ...]

    @property
    def input(self) -> Tensor:
        """The first of the inputs."""
        return self.inputs[0]

    @property
    def delta(self) -> Tensor:
        """The gradient of the first of the outputs."""
        return self.deltas[0]


@dataclass(frozen=True)
class SampleGradient:
    """Per-sample gradients of one parameter from one call. Abstract.

    ``repeat`` rows belong to one sample when the network folded another axis into the batch."""

    def dense(self, part: slice) -> Tensor:
        """G_n of the samples in ``part``: (n, *shape)."""
        raise NotImplementedError

    def work(self) -> int:
        """Numbers that ``dense`` builds for one sample."""
        raise NotImplementedError

    def positions(self) -> tuple[int, ...]:
        """How many positions the sum over t has, for every part of a stack."""
        raise NotImplementedError

    def expanded(self, numbers: int, *, row: bool) -> tuple[Tensor, Tensor | None]:
        """sum_nt G_nt^2 and, for a ``row`` with a bias, sum_nt delta_nt^2 a_nt^T.

        At most ``numbers`` temporary numbers, but at least those of one sample."""
        raise NotImplementedError

    def folded(self, repeat: int) -> SampleGradient:
        """The same with every ``repeat`` consecutive rows as positions of one sample."""
        raise NotImplementedError

    def square_sums(self) -> SquareSums | None:
        """Who adds up squares without writing any G_n; None where nobody does."""
        return None

    @property
    def adds_up(self) -> bool:
        """Whether who adds up squares of G_n may add up G_n for nothing, which is the gradient."""
        return self.square_sums() is not None


#: From a bias's (n, unit), or None, to sum_n G_n^2, where it is asked for sum_n G_n, and
#: sum_n bias_n G_n.
SquareSums = Callable[[Tensor | None, bool], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Patches:
    """The patches of a convolution's inputs, (n, C, *pixels) -> (n, group, C / group, *kernel,
    *positions). ``pad`` and ``mode`` as torch's own ``pad`` has them."""

    pad: tuple[int, ...]
    mode: str
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    size: tuple[int, ...] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """A view of what is padded, cropped to ``size``."""
        x, spatial = F.pad(x, self.pad, mode=self.mode), len(self.kernel)
        for axis, (kernel, step) in enumerate(zip(self.kernel, self.dilation, strict=True)):
            x = x.unfold(2 + axis, step * (kernel - 1) + 1, self.stride[axis])[..., ::step]
            if self.size is not None:
                x = x.narrow(2 + axis, 0, self.size[axis])
        front = [0, 1, 2, *range(3 + spatial, 3 + 2 * spatial), *range(3, 3 + spatial)]
        return x.unflatten(1, (self.groups, -1)).permute(front)


@lru_cache(maxsize=64)
def patch_table(unfold: Patches, shape: tuple[int, ...]) -> Tensor:
    """(position, input of a patch), group after group: which number of a sample (C, *pixels), the
    one behind the last for what is padded with zeros."""
    count = math.prod(shape)
    numbers = torch.arange(1, count + 1, dtype=torch.float64, device="cpu").reshape(1, *shape)
    found = by_position(unfold(numbers))[0].flatten(0, 1).long()
    return torch.where(found > 0, found - 1, count).to(torch.int32).contiguous()


@dataclass(frozen=True)
class Outer(SampleGradient):
    """G_n = sum_t delta_nt a_nt^T, reshaped to ``shape``, independently in every group.

    a: (B, T, I) or (B, group, T, I); delta: (B, T, O) or (B, group, T, O). Where ``unfold`` is
    given it makes patches (n, group, C, *kernel, *positions) of a part of what is stored: a view,
    since they are many times larger."""

    a: Tensor
    delta: Tensor
    shape: tuple[int, ...]
    unfold: Callable[[Tensor], Tensor] | None = None
    repeat: int = 1

    def rows(self, part: slice) -> tuple[Tensor, Tensor]:
        """(n, group, T, I) and (n, group, T, O)."""
        scaled = slice(part.start * self.repeat, part.stop * self.repeat)
        a, delta = self.a[scaled], self.delta[scaled]
        a = a if self.unfold is None else by_position(self.unfold(a))
        return _fold(a, self.repeat), _fold(delta, self.repeat)

    def dense(self, part: slice) -> Tensor:
        a, delta = self.rows(part)
        if self.unfold is None:
            return (delta.mT @ a).reshape(-1, *self.shape)
        # Positions last in the patches, and first in delta: a CPU's products of many small
        # matrices take half as long as with both last, the copy included.
        delta = delta if delta.is_cuda else delta.contiguous()
        return (a.mT @ delta).mT.reshape(-1, *self.shape)

    def weighted(self, part: slice, factor: Tensor) -> Tensor:
        """sum_n factor_n G_n over the samples in ``part``, with a factor (n, unit) for every row:
        one more weight gradient, and no pass over all G_n."""
        a, delta = self.rows(part)
        delta = delta * factor.reshape(len(factor), delta.shape[1], 1, -1)
        return (_by_features(delta).mT @ _by_features(a)).reshape(self.shape)

    def square_sums(self) -> SquareSums | None:
        """By a kernel that writes neither G_n nor patches: of convolutions on a GPU, where other
        maps have no patches and a library's products are faster, and of all maps on a CPU."""
        unfold = self.unfold
        fits = unfold is not None and self.repeat == 1 and len(self.shape) < 5
        one = self.groups == 1
        kernel = sums_kernels(self.a, self.delta, batched=one) if fits else None
        if unfold is None or kernel is None:
            return self._native_sums()
        a, delta, sums = unfold(self.a), _fold(self.delta, 1), kernel.square_sums
        return lambda bias, total: tuple(
            s.reshape(self.shape) for s in sums(a, delta, bias, total=total)
        )

    def _native_sums(self) -> SquareSums | None:
        unfold, known = self.unfold, isinstance(self.unfold, Patches) and self.repeat == 1
        if self.groups > 1 or not (unfold is None or known) or not native(self.a, self.delta):
            return None
        table, (sums,) = None, _NATIVE
        if isinstance(unfold, Patches):
            a, delta = self.a, _fold(self.delta, 1)[:, 0]
            table = patch_table(unfold, tuple(a.shape[1:]))
        else:
            a, delta = (_fold(value, self.repeat)[:, 0] for value in (self.a, self.delta))

        def found(bias: Tensor | None, total: bool) -> tuple[Tensor, ...]:
            bias = None if bias is None else bias.reshape(len(bias), -1)
            every = [s.reshape(self.shape) for s in sums(a.flatten(1), delta, bias, table)]
            return (every[0], *every[1 if total else 2 :])

        return found

    @property
    def adds_up(self) -> bool:
        return self.positions() != (1,) and self.square_sums() is not None

    def work(self) -> int:
        return math.prod(self.shape) + (0 if self.unfold is None else self._unfolded())

    def _unfolded(self) -> int:
        """Numbers of a sample's patches: features times positions in every group."""
        return self.repeat * math.prod(self.delta.shape[1:-1]) * math.prod(self.shape[1:])

    @property
    def groups(self) -> int:
        """How many independent maps stand side by side."""
        return self.delta.shape[1] if self.delta.ndim == 4 else 1

    def positions(self) -> tuple[int, ...]:
        return (self.repeat * self.delta.shape[-2],)

    def chunks(self, numbers: int) -> list[slice]:
        """Parts whose ``rows`` have about ``numbers`` temporary numbers: all, without patches."""
        samples = len(self.delta) // self.repeat
        chunk = max(1, numbers // (2 * self._unfolded())) if self.unfold is not None else samples
        return [slice(n, min(n + chunk, samples)) for n in range(0, samples, chunk)]

    def expanded(self, numbers: int, *, row: bool) -> tuple[Tensor, Tensor | None]:
        totals: tuple[Tensor, ...] = ()
        for part in self.chunks(numbers):
            a, delta = (_by_features(value) for value in self.rows(part))
            squares = delta.square().mT
            found = (squares @ a.square(), squares @ a) if row else (squares @ a.square(),)
            totals = tuple(map(torch.add, totals, found)) if totals else found
        second, *cross = (total.reshape(self.shape) for total in totals)
        return second, cross[0] if row else None

    def folded(self, repeat: int) -> Outer:
        return replace(self, repeat=repeat)


@dataclass(frozen=True)
class Scatter(SampleGradient):
    """G_n[v] = sum over the positions t with index_nt = v of delta_nt.

    index: (B, T) integers below ``shape[0]``; delta: (B, T, *shape[1:])."""

    index: Tensor
    delta: Tensor
    shape: tuple[int, ...]

    def dense(self, part: slice) -> Tensor:
        index, delta = self.index[part], self.delta[part]
        sample = torch.arange(len(index), device=index.device)[:, None]
        rows = _add_rows(sample * self.shape[0] + index, delta, len(index) * self.shape[0])
        return rows.reshape(len(index), *self.shape)

    def work(self) -> int:
        return math.prod(self.shape)

    @staticmethod
    def joined(calls: Sequence[Scatter]) -> Scatter:
        """Several calls as one with all their positions."""
        if len(calls) == 1:
            return calls[0]
        index = torch.cat([g.index for g in calls], dim=1)
        return Scatter(index, torch.cat([g.delta for g in calls], dim=1), calls[0].shape)

    def merged(self) -> Scatter:
        """Repeated indices of a sample become one: no index occurs twice with a non-zero delta.

        Sorting puts equal indices next to each other; their sum goes to the place of the first."""
        index, order = self.index.sort(dim=1, stable=True)
        tail = (1,) * (self.delta.ndim - 2)
        spread = order.reshape(*order.shape, *tail).expand_as(self.delta)
        delta = self.delta.gather(1, spread)
        new = (index[:, 1:] != index[:, :-1]).long().cumsum(1)
        run = torch.nn.functional.pad(new, (1, 0))  # which run of equal indices a position is in
        target = run.reshape(*run.shape, *tail).expand_as(delta)
        sums = torch.zeros_like(delta).scatter_add(1, target, delta)
        return Scatter(torch.zeros_like(index).scatter(1, run, index), sums, self.shape)

    def positions(self) -> tuple[int, ...]:
        return (self.index.shape[1],)

    def expanded(self, numbers: int, *, row: bool) -> tuple[Tensor, Tensor | None]:
        return _add_rows(self.index, self.delta.square(), self.shape[0]), None

    def folded(self, repeat: int) -> Scatter:
        index = self.index.reshape(-1, repeat * self.index.shape[1])
        delta = self.delta.reshape(*index.shape, *self.delta.shape[2:])
        return Scatter(index, delta, self.shape)


@dataclass(frozen=True)
class Sum(SampleGradient):
    """G_n = sum_t d_nt, with d: (B, T, *shape)."""

    d: Tensor

    def dense(self, part: slice) -> Tensor:
        return self.d[part].sum(1)

    def work(self) -> int:
        return math.prod(self.d.shape[1:])

    def positions(self) -> tuple[int, ...]:
        return (self.d.shape[1],)

    def expanded(self, numbers: int, *, row: bool) -> tuple[Tensor, Tensor | None]:
        return self.d.square().sum((0, 1)), None

    @property
    def adds_up(self) -> bool:
        return True  # a number for every unit, and written out

    def folded(self, repeat: int) -> Sum:
        return Sum(self.d.reshape(-1, repeat * self.d.shape[1], *self.d.shape[2:]))


@dataclass(frozen=True)
class Stacked(SampleGradient):
    """Per-sample gradients of consecutive rows of one parameter."""

    parts: tuple[SampleGradient, ...]

    def dense(self, part: slice) -> Tensor:
        return torch.cat([p.dense(part) for p in self.parts], dim=1)

    def work(self) -> int:
        return sum(p.work() for p in self.parts)

    def positions(self) -> tuple[int, ...]:
        return tuple(count for p in self.parts for count in p.positions())

    def expanded(self, numbers: int, *, row: bool) -> tuple[Tensor, Tensor | None]:
        squares, crosses = zip(*(p.expanded(numbers, row=row) for p in self.parts), strict=True)
        known = [c for c in crosses if c is not None]
        return torch.cat(squares), torch.cat(known) if row and known else None

    def square_sums(self) -> SquareSums | None:
        found = [p.square_sums() for p in self.parts]
        known = [s for s in found if s is not None]
        if len(known) < len(found):
            return None
        sizes = [p.shape[0] for p in self.parts if isinstance(p, Outer)]

        def joined(bias: Tensor | None, total: bool) -> tuple[Tensor, ...]:
            biases = [None] * len(known) if bias is None else bias.split(sizes, dim=1)
            every = [s(b, total) for s, b in zip(known, biases, strict=True)]
            return tuple(map(torch.cat, zip(*every, strict=True)))

        return joined

    @property
    def adds_up(self) -> bool:
        return all(p.adds_up for p in self.parts)

    def folded(self, repeat: int) -> Stacked:
        return Stacked(tuple(p.folded(repeat) for p in self.parts))


class Rule(NamedTuple):
    """What a kind of layer tells the Fisher metrics.

    ``gradients(module, call)``: the per-sample gradients of one call, by the layer's own parameter
    names. ``units(module)``: for every bias, the weights of its units (see ``own_units``)."""

    gradients: Callable[[nn.Module, Call], dict[str, SampleGradient]]
    units: Callable[[nn.Module], Units]


def own_units(module: nn.Module) -> Units:
    """By name: "bias" goes with "weight", "bias_ih_l0" with "weight_ih_l0", and so on.

    Unit i is the bias with index i and the weights whose first index (or indices) are i."""
    own = dict(module.named_parameters(recurse=False))
    units: Units = {}
    for name, bias in own.items():
        weight = name.replace("bias", "weight")
        if "bias" in name and weight in own and own[weight].shape[: bias.ndim] == bias.shape:
            units[name] = (weight,)
    return units


def row_units(module: nn.Module) -> Units:
    """The same for linear maps: a weight that no bias goes with has units all the same, its rows,
    and stands for itself, ``{weight: ()}``."""
    units = own_units(module)
    paired = {w for ws in units.values() for w in ws}
    own = module.named_parameters(recurse=False)
    return units | {k: () for k, p in own if "weight" in k and p.ndim > 1 and k not in paired}


def positions(value: Tensor) -> Tensor:
    """(B, ..., F) with all axes between sample and feature as one: (B, T, F)."""
    return value.reshape(value.shape[0], -1, value.shape[-1])


def own_parameter_gradients(module: nn.Module, call: Call) -> dict[str, SampleGradient]:
    """A likelihood's own parameter, the last column of the outputs: G_n[u] = sum_t delta_nt[-1]."""
    (name,) = dict(module.named_parameters(recurse=False))
    return {name: Sum(positions(call.delta[..., -1:]))}


class NativeSums(Protocol):
    """Sums over samples of a linear map's gradients by a native library, of a (n, inputs), delta
    (n, T, O), a bias's (n, O) or None, and a table of patches where there are any: sum_n G_n^2,
    sum_n G_n and, with a bias, sum_n b_n G_n."""

    def __call__(
        self, a: Tensor, delta: Tensor, bias: Tensor | None, table: Tensor | None
    ) -> tuple[Tensor, ...]: ...

    def serves(self, dtype: torch.dtype) -> bool:
        """Whether there is a library for these numbers."""


_NATIVE: list[NativeSums] = []


def use_native_sums(sums: NativeSums) -> None:
    """From now on these sums are made by ``sums`` on a CPU: the same, but for rounding."""
    _NATIVE[:] = [sums]


def native(*tensors: Tensor) -> bool:
    """Whether native sums take these."""
    one = tensors[0]
    fits = all(t.device.type == "cpu" and t.dtype == one.dtype for t in tensors)
    plain = not torch.compiler.is_compiling() and allowed()
    return fits and plain and bool(_NATIVE) and _NATIVE[0].serves(one.dtype)


def sums_kernels(*tensors: Tensor, batched: bool = False) -> Any:
    """``triton_sums`` where it takes these; ``batched``: inside vmap too."""
    one = tensors[0]
    fits = all(t.dtype == one.dtype for t in tensors)
    fits = fits and one.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return _tried(one.device) if fits and usable(one, batched=batched) else None


@cache
def _tried(device: torch.device) -> Any:
    def trial() -> Trial:
        from natural_langevin.statistics import triton_sums

        a = torch.arange(36.0, device=device).reshape(2, 1, 1, 3, 6)[..., :5] % 4
        delta = torch.arange(20.0, device=device).reshape(2, 1, 5, 2) % 3
        G = (delta.mT @ by_position(a)).squeeze(1)
        found = triton_sums.square_sums(a, delta, delta.sum((1, 2)), total=True)
        expected = G.square().sum(0), G.sum(0), (delta.sum(2).mT * G).sum(0)
        x = torch.arange(60.0, device=device).reshape(2, 6, 5) % 7
        d = torch.arange(60.0, device=device).reshape(2, 6, 5) % 4
        normalised = torch.nn.functional.group_norm(x, 2)
        found += triton_sums.channel_sums(x, d, 2, 1e-5)
        return triton_sums, found, (*expected, (normalised * d).sum(2), d.sum(2))

    return tried(device, "sums of gradients", trial)


def _add_rows(index: Tensor, values: Tensor, rows: int) -> Tensor:
    """(B, T) indices and (B, T, ...) values -> (rows, ...), equal indices added up.

    With scatter_add, because inductor silently miscompiles the others under vmap (torch 2.11 and
    2.13): index_put(accumulate=True), and index_add where all chains share the indices."""
    zeros = torch.zeros(rows, *values.shape[2:], dtype=values.dtype, device=values.device)
    values = values.flatten(0, 1)
    places = index.reshape(-1, *(1,) * (values.ndim - 1)).expand_as(values)
    return zeros.scatter_add(0, places, values)


def _fold(value: Tensor, repeat: int) -> Tensor:
    """(n repeat, [group,] T, F) -> (n, group, repeat T, F)."""
    if value.ndim == 3:
        value = value[:, None]
    if repeat == 1:
        return value
    rows, groups, length, features = value.shape
    apart = value.reshape(rows // repeat, repeat, groups, length, features)
    return apart.transpose(1, 2).reshape(rows // repeat, groups, repeat * length, features)


def by_position(patches: Tensor) -> Tensor:
    """(n, group, C, *kernel, *positions) -> (n, group, T, I). In memory positions come last, as
    pixels do: a copy along rows, which takes an eighth of the time of one that gathers every
    position's features."""
    first = (patches.ndim + 3) // 2
    return patches.flatten(first).flatten(2, first - 1).mT


def _by_features(value: Tensor) -> Tensor:
    """(n, group, T, F) -> (group, n T, F), or (n T, F) where there is one group."""
    if value.shape[1] == 1:
        return value.reshape(-1, value.shape[-1])
    return value.transpose(0, 1).flatten(1, 2)
