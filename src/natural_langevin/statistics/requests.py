"""Requests: a metric names the reducers it needs over per-sample gradients; nothing else is formed.

With G_n the gradient of sample n's loss, u_nk = (G_n[bias_k], G_n[weights of unit k]) what belongs
to unit k, and a_n, delta_n a linear map's inputs (behind a one, for its bias) and output gradients:

    "second"        second[p] = mean_n G_n[p]^2                             the diagonal J_ii
    "cross"         cross[b][w] = mean_n G_n[b] G_n[w]                      the bias rows J_0i
    "unit_blocks"   blocks[b] = mean_n u_nk u_nk^T for every unit k         (unit, 1 + I, 1 + I)
    "kronecker"     inputs[w] = mean_n a_n a_n^T, outputs[w] = mean_n delta_n delta_n^T
    "rotated"       rotated[w] = mean_n (U_G^T V_n U_A)^2, V_n = (G_n[bias], G_n[w]), in a basis
    "samples"       samples[p] = G_n itself                                 (B, *shape)

Of a group alone is asked "first", first[p] = mean_n G_n[p]: the gradient, where no backward pass
forms it.

A parameter that has no units (an embedding) gives its second moments to the blocks, and one that
is no matrix with units as rows (a norm's gain) to the Kronecker factors and to "rotated".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units
from natural_langevin.likelihoods import State as LikelihoodState

Request = Literal["second", "cross", "unit_blocks", "kronecker", "rotated", "samples"]
Requests = frozenset[Request]
#: U_A (chain, F, F) and U_G (chain, O, O) by a group's matrix; without chain axis for one chain.
Basis = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
_OF_UNITS: Requests = frozenset({"unit_blocks", "kronecker", "rotated"})
_OF_MATRICES: Requests = frozenset({"kronecker", "rotated"})


def check_requests(requests: Collection[Request]) -> Requests:
    """The requests as a set; unknown names are refused."""
    unknown = set(requests) - set(get_args(Request))
    if isinstance(requests, str) or unknown:
        raise ValueError(f"requests are some of {get_args(Request)}, got {requests!r}")
    return frozenset(requests)


class Group(NamedTuple):
    """Parameters whose statistics are formed together: a bias with its units' weights, a weight
    whose units have no bias, or a parameter without units."""

    name: str  # of the bias, or of the only one
    weights: tuple[str, ...]
    requests: frozenset[Request | Literal["first"]]  # what is asked of them

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters of the group: the bias, then its weights."""
        return (self.name, *self.weights)

    @property
    def matrix(self) -> str:
        """The weight of a group with Kronecker factors."""
        return self.weights[0] if self.weights else self.name


def grouped(shapes: Mapping[str, torch.Size], units: Units, requests: Requests) -> list[Group]:
    """All parameters, and what is asked of each; ``shapes`` without chain axis."""
    inner = {w for ws in units.values() for w in ws}
    found = []
    for name in shapes:
        if name in inner:
            continue
        weights, asked = units.get(name, ()), set(requests) - {"samples"}
        if not weights:
            asked -= {"cross"}
        if name not in units and asked & _OF_UNITS:
            asked = asked - _OF_UNITS | {"second"}
        if asked & _OF_MATRICES and not _is_matrix(shapes, name, weights):
            asked = asked - _OF_MATRICES | {"second"}
        found.append(Group(name, weights, frozenset(asked)))
    return found


def _is_matrix(shapes: Mapping[str, torch.Size], name: str, weights: tuple[str, ...]) -> bool:
    """One row of one weight, of at least two axes, for every unit."""
    if not weights:
        return len(shapes[name]) > 1
    return len(weights) == 1 and len(shapes[weights[0]]) > len(shapes[name]) == 1


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
