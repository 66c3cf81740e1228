"""The result of evaluating a minibatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin.likelihoods import State as LikelihoodState


@dataclass
class Statistics:
    """The requested statistics (see ``requests``), by parameter name, with a leading chain axis."""

    second: Params = field(default_factory=dict)
    cross: dict[str, Params] = field(default_factory=dict)
    blocks: Params = field(default_factory=dict)
    inputs: Params = field(default_factory=dict)
    outputs: Params = field(default_factory=dict)
    rotated: Params = field(default_factory=dict)
    samples: Params = field(default_factory=dict)


@dataclass
class Evaluation:
    """What one batch says of every chain: loss (chain,), gradient, statistics, likelihood state;
    and of how many samples it is (0: not said). ``minibatch_gradient``: the batch's own, where
    ``gradient`` is another estimate."""

    loss: Tensor
    gradient: Params
    statistics: Statistics
    likelihood: LikelihoodState
    deferred: dict[str, DeferredCall] = field(default_factory=dict)
    size: int = 0
    minibatch_gradient: Params | None = None


class DeferredCall(NamedTuple):
    """The single call of a linear layer whose products a kernel computes: (chain, B, features)."""

    input: Tensor  # a
    delta: Tensor  # per-sample output gradients of the data's losses
    fisher_delta: Tensor | None = None  # of drawn labels, for statistics; None: the same as delta


class BatchTargets(NamedTuple):
    """What is known once the outputs are: the likelihood's state, the labels of the loss, and
    those of the statistics."""

    state: LikelihoodState
    y: Tensor
    labels: Tensor
