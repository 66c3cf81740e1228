"""Export: an ensemble as one module for serving, in torch's own format (.pt2) or as ONNX.

The networks' parameters are stacked and evaluated side by side; averaging happens inside, so that
whoever serves the file needs neither this library nor the network's code.
"""

from __future__ import annotations

import copy
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

from natural_langevin._internal.atomic import write_output
from natural_langevin._internal.extras import needing
from natural_langevin.data.signature import Signature
from natural_langevin.likelihoods import Likelihood, State
from natural_langevin.posterior.prediction import combined, one_tensor
from natural_langevin.posterior.sharpening import together
from natural_langevin.statistics.capture import ParameterSlots

log = logging.getLogger("natural_langevin")

Format = Literal["torch", "onnx"]
#: How the networks of a file are evaluated: all at once, by one part of the graph in a loop, or
#: each by a part of its own, which takes long to write and to read.
Way = Literal["side by side", "in a loop", "one after the other"]
WAYS: tuple[Way, ...] = ("side by side", "in a loop", "one after the other")


class Served(nn.Module):
    """Inputs (B, ...) to what ``predict`` says of them: mean, total, epistemic.

    Without ``total`` where the likelihood knows no distribution. Parameters are buffers.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        networks: dict[str, Tensor],
        state: State,
        sharpness: float = 1.0,
        spread: float = 1.0,
    ) -> None:
        super().__init__()
        self.sharpness, self.spread = sharpness, spread
        self.model = copy.deepcopy(model)
        self._slots = ParameterSlots(self.model)
        self._signature = Signature(self.model, raw=likelihood.raw_outputs)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(False)
            if name in networks:  # each network brings its own: the template's need no room
                parameter.data = parameter.data.new_empty(0)
        self.likelihood, self._names = likelihood, list(networks)
        for index, value in enumerate(networks.values()):
            self.register_buffer(f"networks_{index}", value.detach().clone())
        self._learned = list(state)
        for name, value in state.items():
            self.register_buffer(f"learned_{name}", value.detach().clone())
        self.way: Way = "side by side"
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        networks = {k: getattr(self, f"networks_{i}") for i, k in enumerate(self._names)}

        def one(params: dict[str, Tensor]) -> Tensor:
            return one_tensor(self._signature.call(partial(self._slots.call, params), x))

        if self.way == "side by side":
            outputs = vmap(one)(networks)
        elif self.way == "in a loop":
            outputs = _in_a_loop(one, networks)
        else:
            count = len(next(iter(networks.values())))
            members = [{k: v[m] for k, v in networks.items()} for m in range(count)]
            outputs = torch.stack([one(member) for member in members])
        state = {name: getattr(self, f"learned_{name}") for name in self._learned}
        (value, spread, classes), _ = together(
            self.likelihood, outputs, state, self.sharpness, self.spread, served=True
        )
        mean, own = value.mean(0), None if spread is None else spread.mean(0)
        if classes is not None:
            assert own is not None
            total, _, epistemic = combined(classes, mean, own)
        else:  # around the mean: exact enough without float64
            epistemic = (value - mean).square().mean(0)
            total = None if own is None else own + epistemic
        return (mean, epistemic) if total is None else (mean, total, epistemic)


def write(served: Served, path: str | os.PathLike[str], example: Tensor, format: Format) -> None:
    """Writes the file; the number of inputs is free, all their other sizes are the example's."""
    if format not in ("torch", "onnx"):
        raise ValueError(f'format must be "torch" or "onnx", got {format!r}')
    if format == "torch" and Path(path).suffix != ".pt2":
        raise ValueError(f"torch.export reads only files named .pt2, got {os.fspath(path)!r}")
    if format == "onnx":
        _import_onnx()
    program = _exported(served, example)
    if format == "torch":
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        write_output(path, buffer.getvalue())
        return
    found = ["mean", "total", "epistemic"]
    names = found if len(program.graph_signature.user_outputs) == 3 else found[::2]
    with _quiet():
        converted = torch.onnx.export(program, dynamo=True, input_names=["x"], verbose=False)
    assert converted is not None
    # Not by output_names=, which a value inside may have too.
    graph = converted.model.graph
    for value in (value for node in graph.all_nodes() for value in node.outputs):
        if value.name in names:
            value.name = f"inner_{value.name}"
    for value, name in zip(graph.outputs, names, strict=True):
        value.name = name
    converted.save(os.fspath(path))


def _exported(served: Served, example: Tensor) -> Any:
    if len(example) == 0:
        raise ValueError("the example must hold at least one input, got none")
    few = example[:2] if len(example) > 1 else torch.cat([example, example])  # 1 would be fixed
    sizes = {"x": {0: torch.export.Dim("batch")}}
    # vmap of some layers (convolutions, BatchNorm) fixes the number of inputs; a loop does not.
    for way in WAYS:
        served.way = way
        try:
            with _quiet(), _plain_attention():
                return torch.export.export(served, (few,), dynamic_shapes=sizes)
        except Exception as error:
            if way == WAYS[-1]:
                raise
            log.info("the networks cannot be exported %s (%s)", way, type(error).__name__)
    raise AssertionError("one of the ways returns or raises")


def _in_a_loop(one: Callable[[dict[str, Tensor]], Tensor], networks: dict[str, Tensor]) -> Tensor:
    """``one`` of every network, stacked: a loop in the file, whatever the number of networks."""
    from torch._higher_order_ops.scan import scan

    first = next(iter(networks.values()))

    def body(count: Tensor, own: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return count + 1, one(own)

    _, outputs = scan(body, first.new_zeros((), dtype=torch.int64), networks)
    assert isinstance(outputs, Tensor)
    return outputs


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention and encoder layers as operations that every format knows."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' remarks on their own deprecations and on packages not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _import_onnx() -> None:
    with needing("ONNX needs onnx and onnxscript", "export"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
