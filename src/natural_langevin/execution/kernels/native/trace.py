"""Recognises networks that are a chain of layers and activations, by tracing one call.

The network is called on a few samples, and every torch function on the way is looked at: the tensor
that carries the samples must go through nothing but products with parameters, convolutions, pools,
biases, activations and changes of shape that keep the order. How the module is written does not
matter, its types and hooks neither: what is on the way counts. What is found is proven on real
batches afterwards (see ``planner``); here it is enough to be careful.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from natural_langevin.execution.kernels.native.layout import ACTIVATIONS, KINDS, Layer
from natural_langevin.statistics.rules.base import Patches, patch_table


class Places(NamedTuple):
    """``table`` (position, input of a patch) of a convolution, (output, feature) of a pool."""

    kind: str  # of layout.KINDS
    table: Tensor  # int32
    inputs: int  # features of a sample
    share: float = 1.0  # of an average


class UnknownPlacesError(Exception):
    """A form of the layer that has no table here."""


def convolution(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> Places:
    """Of ``x`` (n, channel, *pixels), with a bias or without."""
    kernel = weight.shape[2:]
    if groups != 1 or x.ndim != weight.ndim or x.shape[1] != weight.shape[1]:
        raise UnknownPlacesError
    stride, dilation = _each(stride, kernel), _each(dilation, kernel)
    if padding == "valid":
        padding = 0
    if padding == "same":
        missing = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = [(m // 2, m - m // 2) for m in missing]
    else:
        sides = [(p, p) for p in _each(padding, kernel)]
    return _windows("convolution", x, kernel, stride, sides, dilation, 1)


def pool(
    kind: str, x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1
) -> Places:
    """The largest or the mean of every window of ``x`` (n, channel, *pixels)."""
    kernel = _each(kernel_size, x.shape[2:])
    stride = kernel if stride is None or stride == [] else _each(stride, kernel)
    sides = [(p, p) for p in _each(padding, kernel)]
    return _windows(kind, x, kernel, stride, sides, _each(dilation, kernel), x.shape[1])


def adaptive_pool(kind: str, x: Tensor, output_size: Any) -> Places:
    """Windows that share ``x`` evenly into ``output_size``."""
    pixels = x.shape[2:]
    size = [p if s is None else s for s, p in zip(_each(output_size, pixels), pixels, strict=True)]
    if any(p % s for s, p in zip(size, pixels, strict=True)):
        raise UnknownPlacesError  # windows of several sizes
    return pool(kind, x, [p // s for s, p in zip(size, pixels, strict=True)])


def reduction(kind: str, x: Tensor, dim: Any) -> Places:
    """The largest or the mean along some axes."""
    axes = {d % x.ndim for d in ((dim,) if isinstance(dim, int) else tuple(dim))}
    if 0 in axes or not axes:
        raise UnknownPlacesError
    kept = [d for d in range(1, x.ndim) if d not in axes]
    numbers = torch.arange(x[0].numel()).reshape(x.shape[1:])
    found = numbers.permute([d - 1 for d in (*kept, *sorted(axes))])
    outputs = torch.Size(x.shape[d] for d in kept).numel()
    return _places(kind, found.reshape(outputs, -1), x)


def _each(value: Any, like: Sequence[int]) -> list[Any]:
    values = list(value) if isinstance(value, Sequence) else [value]
    values = values * len(like) if len(values) == 1 else values
    if len(values) != len(like):
        raise UnknownPlacesError
    return values


def _windows(
    kind: str, x: Tensor, kernel: Any, stride: Any, sides: Any, dilation: Any, groups: int
) -> Places:
    """``sides``: how many zeros there are before and behind every axis of pixels."""
    pad = tuple(n for side in reversed(sides) for n in side)
    unfold = Patches(pad, "constant", tuple(kernel), tuple(stride), tuple(dilation), groups)
    return _places(kind, patch_table(unfold, tuple(x.shape[1:])).clone(), x)


def _places(kind: str, table: Tensor, x: Tensor) -> Places:
    share = 1.0 / table.shape[1] if kind == "average_pool" else 1.0
    return Places(kind, table.to(torch.int32).contiguous(), x[0].numel(), share)


@dataclass(frozen=True)
class LayerSpec:
    """y = f(W x + b): names of the parameters (of frozen ones, too), and the activation f.

    ``places``: of a convolution and of a pool, which has no parameters. Without either, the bias
    follows the ``inputs``."""

    weight: str | None
    bias: str | None
    activation: str = "identity"
    parameters: tuple[float, float] = (0.0, 0.0)
    places: Places | None = None
    inputs: int = 0

    @property
    def kind(self) -> str:
        """Of ``layout.KINDS``."""
        if self.places is not None:
            return self.places.kind
        return "append" if self.weight is None else "linear"


def other_tensors(model: nn.Module, params: Container[str]) -> dict[str, Tensor]:
    """Parameters and buffers of a model that are not among ``params``: frozen ones, mostly."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach() for name, tensor in named.items() if name not in params}


class _NotAChainError(Exception):
    pass


def trace(
    call: Callable[[Tensor], Any], named: Mapping[str, Tensor], x: Tensor
) -> list[LayerSpec] | None:
    """The layers of ``call`` on a batch ``x``, or None where it is no chain of them.

    ``named``: every parameter and buffer that ``call`` uses, as the tensors that it uses."""
    watch = _Watch(named, x)
    try:
        with torch.no_grad(), watch:
            outputs = call(x)
        return watch.finish(outputs)
    except _NotAChainError:
        return None


@dataclass
class _Watch(TorchFunctionMode):
    named: Mapping[str, Tensor]
    x: Tensor
    layers: list[LayerSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in self.named.items()}
        self._carrier = self.x
        self._flipped: dict[int, tuple[str, Tensor]] = {}  # transposed weights
        self._expanded: dict[int, tuple[str, Tensor]] = {}  # biases of every sample

    def finish(self, outputs: Any) -> list[LayerSpec]:
        used = [name for layer in self.layers for name in (layer.weight, layer.bias) if name]
        if outputs is not self._carrier or not self.layers or len(set(used)) != len(used):
            raise _NotAChainError
        return self.layers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = self._carrier
        result = func(*args, **kwargs)
        joined = args[0] if func is torch.cat else ()
        tensors = [a for a in (*args, *kwargs.values(), *joined) if isinstance(a, Tensor)]
        if not isinstance(result, Tensor):
            if any(a is before for a in tensors) and _holds_values(result):
                raise _NotAChainError
            return result
        if not any(a is before for a in tensors):
            self._beside(func, tensors, result)
            return result
        self._carrier = result
        self._on_the_way(func, before, args, kwargs, result)
        return result

    def _beside(self, func: Any, tensors: list[Tensor], result: Tensor) -> None:
        """A call that the samples do not go through: a weight may be transposed there."""
        names = [self._names[id(t)] for t in tensors if id(t) in self._names]
        if len(tensors) == 1 and names and func in TRANSPOSES and result.ndim == 2:
            weight = self.named[names[0]]
            if weight.ndim == 2 and result.stride() == weight.stride()[::-1]:
                self._flipped[id(result)] = (names[0], result)
        elif names and func is Tensor.expand and tensors[0].shape == (1,) and result.ndim == 2:
            self._expanded[id(result)] = (names[0], result)
        elif names:
            raise _NotAChainError  # a parameter that is computed with

    def _on_the_way(
        self, func: Any, before: Tensor, args: Any, kwargs: Any, result: Tensor
    ) -> None:
        name = FUNCTIONS.get(func)
        if name == "linear":
            self._linear(before, *args, **kwargs)
        elif name == "matmul" and args[0] is before and id(args[1]) in self._flipped:
            self._append(before, self._flipped[id(args[1])][0], None)
        elif name == "addmm" and args[1] is before and id(args[2]) in self._flipped and not kwargs:
            self._append(before, self._flipped[id(args[2])][0], self._name(args[0], 1))
        elif name == "add" and not kwargs and self._takes_bias():
            other = args[1] if args[0] is before else args[0]
            self.layers[-1] = replace(self.layers[-1], bias=self._name(other, 1))
        elif name == "shape":
            if result.numel() != before.numel() or len(result) != len(self.x):
                raise _NotAChainError
            if not torch.equal(result.reshape(-1), before.reshape(-1)):
                raise _NotAChainError
        elif name == "dropout":
            training = kwargs.get("training", args[2] if len(args) > 2 else True)
            if training and kwargs.get("p", args[1] if len(args) > 1 else 0.5):
                raise _NotAChainError
        elif name in ACTIVATION_PARAMETERS:
            self._activation(name, args, kwargs)
        elif func is torch.cat:
            self._cat(before, *args, **kwargs)
        elif name == "convolution":
            self._convolution(before, *args, **kwargs)
        elif name in POOLS and args and args[0] is before:
            self._pool(name, before, result, args[1:], kwargs)
        else:
            raise _NotAChainError

    def _cat(self, before: Tensor, parts: Any, dim: int = 0) -> None:
        """One bias behind every sample's features."""
        known = len(parts) == 2 and parts[0] is before and id(parts[1]) in self._expanded
        if not known or before.ndim != 2 or dim not in (1, -1):
            raise _NotAChainError
        name = self._expanded[id(parts[1])][0]
        self.layers.append(LayerSpec(None, name, inputs=before.shape[1]))

    def _convolution(
        self,
        before: Tensor,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        if input is not before:
            raise _NotAChainError
        names = self._name(weight, before.ndim), None if bias is None else self._name(bias, 1)
        places = self._found(convolution, before, weight, stride, padding, dilation, groups)
        self.layers.append(LayerSpec(*names, places=places))

    def _pool(self, name: str, before: Tensor, result: Tensor, args: Any, kwargs: Any) -> None:
        make, kind, arguments = POOLS[name]
        given = dict(zip(arguments, args, strict=False)) | kwargs
        for key, plain in PLAIN.items():
            if given.pop(key, plain[0]) not in plain:
                raise _NotAChainError
        if len(args) > len(arguments) or result.shape[:1] != self.x.shape[:1]:
            raise _NotAChainError
        places = self._found(make, kind, before, **given)
        if len(places.table) * len(result) != result.numel():
            raise _NotAChainError
        self.layers.append(LayerSpec(None, None, places=places))

    def _found(self, make: Callable[..., Places], *args: Any, **kwargs: Any) -> Places:
        try:
            with torch._C.DisableTorchFunction():
                return make(*args, **kwargs)
        except (UnknownPlacesError, TypeError):  # TypeError: an argument that is unknown here
            raise _NotAChainError from None

    def _linear(self, before: Tensor, input: Any, weight: Any, bias: Any = None) -> None:
        if input is not before:
            raise _NotAChainError
        name = None if bias is None else self._name(bias, 1)
        self._append(before, self._name(weight, 2), name)

    def _append(self, before: Tensor, weight: str, bias: str | None) -> None:
        if before.ndim != 2:
            raise _NotAChainError  # positions within a sample share the weights
        self.layers.append(LayerSpec(weight, bias))

    def _takes_bias(self) -> bool:
        last = self.layers[-1] if self.layers else None
        return last is not None and last.kind == "linear" and last == LayerSpec(last.weight, None)

    def _name(self, tensor: Any, ndim: int) -> str:
        if not isinstance(tensor, Tensor) or id(tensor) not in self._names or tensor.ndim != ndim:
            raise _NotAChainError
        return self._names[id(tensor)]

    def _activation(self, name: str, args: Any, kwargs: Any) -> None:
        if not self.layers or self.layers[-1].activation != "identity":
            raise _NotAChainError
        given = dict(zip(ACTIVATION_PARAMETERS[name], args[1:], strict=False)) | kwargs
        given.pop("inplace", None)
        parameters = (0.0, 0.0)
        if name == "gelu":
            name = "gelu_tanh" if given.pop("approximate", "none") == "tanh" else "gelu"
        elif name == "leaky_relu":
            parameters = (float(given.pop("negative_slope", 0.01)), 0.0)
        elif name == "softplus":
            parameters = (float(given.pop("beta", 1.0)), float(given.pop("threshold", 20.0)))
        elif name == "elu":
            parameters = (float(given.pop("alpha", 1.0)), 1.0)
        elif name == "celu":  # an ELU that is as wide as it is high
            name, parameters = "elu", (float(given.pop("alpha", 1.0)),) * 2
        elif name == "hardtanh":
            parameters = (float(given.pop("min_val", -1.0)), float(given.pop("max_val", 1.0)))
        elif name == "relu6":
            name, parameters = "hardtanh", (0.0, 6.0)
        if given or not all(map(math.isfinite, parameters)):
            raise _NotAChainError
        self.layers[-1] = replace(self.layers[-1], activation=name, parameters=parameters)


def _holds_values(result: Any) -> bool:
    """Whether a call that gave no tensor may have read or changed one, not just told a shape."""
    if isinstance(result, (tuple, list)):
        return any(_holds_values(part) for part in result)
    return result is None or isinstance(result, (Tensor, float))


#: Activations, and the names of their further arguments in order.
ACTIVATION_PARAMETERS: dict[str, tuple[str, ...]] = {
    "relu": ("inplace",),
    "leaky_relu": ("negative_slope", "inplace"),
    "tanh": (),
    "sigmoid": (),
    "gelu": ("approximate",),
    "silu": ("inplace",),
    "softplus": ("beta", "threshold"),
    "elu": ("alpha", "inplace"),
    "celu": ("alpha", "inplace"),
    "selu": ("inplace",),
    "mish": ("inplace",),
    "hardtanh": ("min_val", "max_val", "inplace"),
    "relu6": ("inplace",),
}

_PROPERTIES: Any = (Tensor.T, Tensor.mT)
TRANSPOSES = {
    Tensor.t, torch.t, torch.transpose, Tensor.transpose, *(p.__get__ for p in _PROPERTIES),
}  # fmt: skip

#: What a torch function is, on the way of the samples.
FUNCTIONS: dict[Any, str] = {
    F.linear: "linear",
    **dict.fromkeys((torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__),
                    "matmul"),
    torch.addmm: "addmm",
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_,
                     Tensor.__iadd__), "add"),
    **dict.fromkeys((torch.flatten, Tensor.flatten, Tensor.view, torch.reshape, Tensor.reshape,
                     torch.squeeze, Tensor.squeeze, torch.unsqueeze, Tensor.unsqueeze,
                     Tensor.__getitem__, Tensor.contiguous, Tensor.clone, Tensor.float,
                     Tensor.double, Tensor.to, Tensor.unflatten), "shape"),
    **dict.fromkeys((F.dropout, torch.dropout), "dropout"),
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, F.relu_), "relu"),
    **dict.fromkeys((F.leaky_relu, F.leaky_relu_), "leaky_relu"),
    **dict.fromkeys((F.tanh, torch.tanh, torch.tanh_, Tensor.tanh, Tensor.tanh_), "tanh"),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, torch.sigmoid_, Tensor.sigmoid, Tensor.sigmoid_),
                    "sigmoid"),
    F.gelu: "gelu",
    F.silu: "silu",
    F.softplus: "softplus",
    F.elu: "elu",
    **dict.fromkeys((F.celu, torch.celu, torch.celu_), "celu"),
    **dict.fromkeys((F.selu, torch.selu, torch.selu_), "selu"),
    F.mish: "mish",
    F.hardtanh: "hardtanh",
    F.relu6: "relu6",
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), "convolution"),
    **dict.fromkeys((F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d,
                     torch.max_pool3d), "max_pool"),
    **dict.fromkeys((F.avg_pool1d, F.avg_pool2d, F.avg_pool3d), "avg_pool"),
    **dict.fromkeys((F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
                    "adaptive_avg_pool"),
    **dict.fromkeys((F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
                    "adaptive_max_pool"),
    **dict.fromkeys((torch.mean, Tensor.mean), "mean"),
}  # fmt: skip

#: How a pool's table is made, what it takes of a window, and its arguments in order.
POOLS: dict[str, tuple[Callable[..., Places], str, tuple[str, ...]]] = {
    "max_pool": (pool, "max_pool",
                 ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")),
    "avg_pool": (pool, "average_pool",
                 ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad",
                  "divisor_override")),
    "adaptive_avg_pool": (adaptive_pool, "average_pool", ("output_size",)),
    "adaptive_max_pool": (adaptive_pool, "max_pool", ("output_size", "return_indices")),
    "mean": (reduction, "average_pool", ("dim", "keepdim")),
}  # fmt: skip

#: Arguments of pools that change nothing when they are so.
PLAIN: dict[str, tuple[Any, ...]] = {
    "ceil_mode": (False,), "return_indices": (False,), "count_include_pad": (True,),
    "divisor_override": (None,), "keepdim": (False, True), "dtype": (None,),
}  # fmt: skip


# A traced layer as the ``struct Layer`` that the library reads: its kind, sizes and activation.


def describe(layer: Layer, spec: LayerSpec, weight: Sequence[int] | None) -> None:
    """``weight``: the weight's shape, of one network. A table stays where ``spec`` has it."""
    layer.kind = KINDS.index(spec.kind)
    layer.activation = ACTIVATIONS.index(spec.activation)
    layer.parameter = (ctypes.c_double * 2)(*spec.parameters)
    layer.positions = 1
    if weight is not None:
        layer.units, layer.unit_inputs = weight[0], math.prod(weight[1:])
    layer.inputs = layer.unit_inputs
    if spec.kind == "append":
        layer.units, layer.unit_inputs, layer.inputs = 1, 1, spec.inputs
        layer.outputs = layer.inputs + layer.units
        return
    if spec.places is not None:
        rows, columns = spec.places.table.shape
        layer.table, layer.inputs = spec.places.table.data_ptr(), spec.places.inputs
        layer.share = spec.places.share
        if weight is None:
            layer.units, layer.unit_inputs = rows, columns
        else:
            layer.positions = rows
    layer.outputs = layer.units * layer.positions
