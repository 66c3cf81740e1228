"""Notices: warnings about likely mistakes, once each, with the remedy.

They depend on the network's outputs for some rows, and on the size of inputs and targets. The
defaults (prior, start, step size) suit inputs and targets of size about one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from natural_langevin._internal.progress import Progress
from natural_langevin.data.signature import Signature
from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.likelihoods import Likelihood
from natural_langevin.preconditioners.base import FisherPreconditioner
from natural_langevin.run.problem.data_checks import outputs_of_few
from natural_langevin.run.problem.motion import Motion
from natural_langevin.run.problem.problem import Problem

log = logging.getLogger("natural_langevin")

#: Root mean squares beyond these are not "of size about one".
LARGE, SMALL = 10.0, 0.01
ROWS = 1000


def notice(motion: Motion, stream: Stream, *, fitted: bool, said: set[str]) -> None:
    """Logs every notice that is not among those ``said``. ``fitted``: the network has learned from
    such inputs and targets already, whatever their size."""
    problem, rows = motion.problem, stream.num_data
    data = (stream.x, stream.y) if isinstance(stream, InMemory) else stream.example()
    outputs = outputs_of_few(problem.network, motion.init().params, data[0])
    model, likelihood, metric = problem.network.model, problem.likelihood, motion.preconditioner
    x, y = (t[:ROWS] for t in data)
    found = [*_of_network(model), *_of_outputs(model, likelihood, outputs)]
    found += _of_shapes(likelihood, outputs, y)
    if rows == 1 and isinstance(metric, FisherPreconditioner):
        found.append(
            f"{type(metric).__name__} is made of the gradients of single rows, and those of the "
            "only one vanish at a minimum: give preconditioner=preconditioners.Euclidean()"
        )
    if not fitted:
        found += [*_of_inputs(model, problem.signature, x), *_of_targets(likelihood, y)]
    for text in found:
        if text not in said:
            said.add(text)
            log.warning("%s", text)


def announce(problem: Problem, title: str) -> None:
    """Logs what a run does before its first step, if that takes a while."""
    if problem.chains.processes.first and not _usually_quick(problem.template):
        Progress(title, None).say(
            "choosing the prior's scale, the step size and the start from the data, which may "
            "take as long as the run; give prior= and step_size= to skip it"
        )


def _usually_quick(model: nn.Module) -> bool:
    """Whether an engine on a CPU will most likely take it: linear layers alone, or these and
    convolutions, one after the other."""
    layers = [m for m in model.modules() if len(list(m.parameters(recurse=False)))]
    if all(isinstance(m, nn.Linear) for m in layers):
        return True
    in_turn = all(isinstance(m, nn.Sequential) for m in model.modules() if list(m.children()))
    return in_turn and all(isinstance(m, nn.Linear | _ConvNd) for m in layers)


def _of_network(model: nn.Module) -> Iterator[str]:
    untrained = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and module.num_batches_tracked is not None
        and not int(module.num_batches_tracked)
    ]
    if untrained:
        yield (
            f"BatchNorm layers {untrained[:4]} have never seen data: they divide by a variance of "
            "1 and do nothing useful. Send some batches through model.train() first and call "
            "model.eval() then, or use LayerNorm or GroupNorm"
        )


def _of_outputs(model: nn.Module, likelihood: Likelihood, outputs: Any) -> Iterator[str]:
    if not isinstance(outputs, Tensor):
        return
    if likelihood.link == "softmax":
        one = torch.isclose(outputs.sum(-1), outputs.new_ones(()), atol=1e-4)
        if bool(one.all()) and bool((outputs >= 0).all()) and outputs.shape[-1] > 1:
            surest = math.e / (math.e + outputs.shape[-1] - 1)  # softmax of a one-hot vector
            yield (
                "the network's outputs are probabilities already (a final Softmax?), but "
                "Categorical takes logits and applies a softmax itself: predictions could never "
                f"be more certain than {surest:.0%}. Remove the Softmax"
            )
    if likelihood.link == "sigmoid":
        last = [m for m in model.modules() if not [*m.children()]][-1:]
        if last and isinstance(last[0], nn.Sigmoid):
            yield (
                "the network ends with a Sigmoid, but Bernoulli takes logits and applies one "
                "itself: predictions could never be below 50 %. Remove the Sigmoid"
            )


def _of_shapes(likelihood: Likelihood, outputs: Any, y: Tensor) -> Iterator[str]:
    """Predictions have the network's shape: minus targets (n,) they would become (n, n)."""
    if likelihood.discrete or likelihood.raw_outputs:
        return
    if isinstance(outputs, Tensor) and outputs.shape[1:] == (1,) and y.ndim == 1:
        yield (
            "the targets y are of shape (n,) and the network's outputs have a second "
            "axis, as predictions then do: p.mean - y would be a square matrix. Compare "
            "p.mean.squeeze(-1) with y, or give y.unsqueeze(-1)"
        )


def _of_inputs(model: nn.Module, signature: Signature, x: Tensor) -> Iterator[str]:
    first = next((m for m in model.modules() if not [*m.children()]), None)
    if isinstance(first, _BatchNorm | nn.LayerNorm | nn.GroupNorm | nn.Embedding):
        return  # which scales them itself, or looks them up
    for part, value in signature.parts(x):
        if part.kind != "real":
            continue
        size = value.double().square().mean(0).sqrt()
        name = f"input {part.name!r}" if part.name else "inputs x"
        # Of pixels, the whole matters; of columns, each one.
        largest = float(size.max()) if len(part.shape) == 1 else float(size.square().mean().sqrt())
        if largest > LARGE:
            yield (
                f"the {name} are of size {largest:.3g}, and the defaults are made for inputs of "
                "size about 1: scale them, x = (x - x.mean(0)) / x.std(0) for columns, x / 255 "
                "for pixels, and predict with the same scale"
            )


def _of_targets(likelihood: Likelihood, y: Tensor) -> Iterator[str]:
    if not likelihood.has_units or not y.is_floating_point():
        return
    size, spread = float(y.double().square().mean().sqrt()), float(y.double().std(correction=0))
    if size > LARGE or 0 < spread < SMALL:
        yield (
            f"the targets y are of size {size:.3g} and vary by {spread:.3g}, and the defaults are "
            "made for targets of size about 1: scale them, y = (y - y.mean()) / y.std(), with "
            "sigma in the same units, and scale predictions back; natural_langevin.sklearn's "
            "estimators do so by themselves"
        )
