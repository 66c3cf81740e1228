"""Algorithm 1: stochastic gradient Langevin dynamics with a preconditioner C.

Target: pi(theta) ~ [alpha(theta) prod_n p_theta(y_n | x_n)]^(1/T). One step, with N data, the
minibatch *mean* loss gradient g, prior density alpha, step size eta and temperature T:

    v     = g - (1/N) d ln alpha(theta)
    theta = theta - eta C v + sqrt(2 eta T / N) C^{1/2} xi,      xi ~ N(0, Id)

eta is on SGD's scale. T = 1 is the Bayesian posterior; T = 0 is preconditioned gradient descent.
The metric is updated before it is applied, from likelihood gradients only: it never contains the
prior or the noise. Reference: Marceau-Caron & Ollivier 2017, Eq. (3) and Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin import random
from natural_langevin._internal.chains import average, per_chain
from natural_langevin.preconditioners import Damping, Preconditioner, resolve_damping
from natural_langevin.priors import Prior
from natural_langevin.statistics import Evaluation, Gradients, Params


class State(NamedTuple):
    """What the next step needs: a plain tree of tensors, parameters as (chain, *shape)."""

    step: Tensor  # () int64: updates done so far
    params: Params  # theta
    mean: Params  # running average of theta with rate mu_t
    metric: dict[str, Any]  # the preconditioner's J
    likelihood: dict[str, Tensor]  # what the likelihood learns, (chain,) each
    diverged: Tensor  # (chain,) int64: the update whose result had a non-finite loss, or -1


class Rates(NamedTuple):
    """The schedules' values at one step."""

    step_size: Tensor  # eta_t: (chain,)
    decay: Tensor  # gamma_t: ()
    mean: Tensor  # mu_t: ()


class Info(NamedTuple):
    """What a reader wants to know of a step."""

    loss: Tensor  # (chain,) mean log-loss of the minibatch, before the update
    diverged: Tensor  # (chain,) bool


@dataclass(frozen=True)
class Dynamics:
    """Algorithm 1 for all chains at once, as a pure function of its arguments."""

    gradients: Gradients
    preconditioner: Preconditioner
    prior: dict[str, Prior]
    temperature: Tensor  # (chain,)
    noise: Tensor  # (chain,) int64: origin of the chains' noise streams
    labels: Tensor  # (chain,) int64: origin of the streams that draw labels from the model

    #: Where in a chain's noise stream every parameter's draws begin.
    starts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        sizes = {name: p.numel() for name, p in self.gradients.network.trainable().items()}
        starts = random.aligned_starts(sizes.values())
        object.__setattr__(self, "starts", dict(zip(sizes, starts, strict=True)))

    def init(self, params: Params) -> State:
        """The state before the first update, from starting points (chain, *shape)."""
        first = next(iter(params.values()))
        chains = first.shape[0]
        return State(
            step=torch.zeros((), dtype=torch.int64, device=first.device),
            params=params,
            mean={name: p.clone() for name, p in params.items()},
            metric=self.preconditioner.init(params, self.gradients.network.units()),
            likelihood=self.gradients.likelihood.init(
                chains, dtype=first.dtype, device=first.device
            ),
            diverged=torch.full((chains,), -1, dtype=torch.int64, device=first.device),
        )

    def step(
        self,
        state: State,
        batch: tuple[Tensor, Tensor],
        rates: Rates,
        num_data: float | Tensor,
        *,
        chain_axis: bool = False,
    ) -> tuple[State, Info]:
        """One pass of Algorithm 1's loop."""
        # "forward x through the network, compute loss; backpropagate: g <- average of gradients"
        evaluation = self.evaluate(state, batch, chain_axis=chain_axis)
        new = self.update(state, evaluation, rates, num_data)
        keep = self.still_running(state, evaluation.loss)
        diverged = self.note_diverged(state, keep)
        return select(keep, new, state, diverged), Info(evaluation.loss, diverged >= 0)

    def evaluate(
        self,
        state: State,
        batch: tuple[Tensor, Tensor],
        *,
        chain_axis: bool,
        deferred: tuple[str, ...] = (),
    ) -> Evaluation:
        """Loss, gradients and statistics at theta; of the layers ``deferred``, their raw calls."""
        return self.gradients(
            state.params,
            state.likelihood,
            batch,
            chain_axis=chain_axis,
            key=random.stream(self.labels, state.step),
            step=state.step,
            deferred=deferred,
        )

    def update(
        self, state: State, evaluation: Evaluation, rates: Rates, num_data: float | Tensor
    ) -> State:
        """The rest of the loop, for the parameters in ``state``. Comments quote the paper."""
        theta, eta, g = state.params, rates.step_size, evaluation.gradient
        # "incorporate gradient of prior: g <- g + (1/N) Sigma_0^{-1} (theta - theta_0)"
        v = {k: g[k] - self.prior[k].gradient(theta[k]) / num_data for k in theta}
        # "update preconditioner C using current sample and gradient"  (g without the prior)
        metric = self.preconditioner.update(state.metric, g, evaluation.statistics, rates.decay)
        C = self.preconditioner.factor(metric, self.damping(theta, num_data))
        # "apply preconditioner: g <- C g"
        drift = C.apply(v)
        # "sample preconditioned noise: xi ~ N(0, C) = C^{1/2} N(0, Id)"
        xi = C.sample(self._standard_normal(theta, state.step))
        # "update parameters: theta <- theta - eta_t g + sqrt(2 eta_t / N) xi"
        scale = self.noise_scale(rates, num_data)
        moved = {
            k: theta[k] - per_chain(eta, theta[k]) * drift[k] + per_chain(scale, theta[k]) * xi[k]
            for k in theta
        }
        # "update posterior mean: theta_mean <- (1 - mu_t) theta_mean + mu_t theta"
        mean = {k: average(state.mean[k], moved[k], rates.mean) for k in theta}
        return State(state.step + 1, moved, mean, metric, evaluation.likelihood, state.diverged)

    def damping(self, names: Iterable[str], num_data: float | Tensor) -> Damping:
        """epsilon of these parameters, for drift and noise alike."""
        own = {k: self.prior[k] for k in names}
        return resolve_damping(self.preconditioner, own, num_data)

    def noise_scale(self, rates: Rates, num_data: float | Tensor) -> Tensor:
        """sqrt(2 eta T / N): (chain,)."""
        return torch.sqrt(2 * rates.step_size * self.temperature / num_data)

    def _standard_normal(self, like: Params, step: Tensor) -> Params:
        """z ~ N(0, Id), addressed by (seed, chain, step, tensor, element)."""
        key = random.stream(self.noise, step)
        return {
            k: random.normal(key, math.prod(p.shape[1:]), start=self.starts[k])
            .to(p.dtype)
            .reshape(p.shape)
            for k, p in like.items()
        }

    def still_running(self, state: State, loss: Tensor) -> Tensor:
        """Chains that take this step: (chain,) bool. A chain whose loss is not finite stands still.

        The loss at theta is the one number that every parameter reaches, and it is known before
        the update, so that stopping a chain costs no second pass over the parameters.
        """
        return (state.diverged < 0) & torch.isfinite(loss)

    def note_diverged(self, state: State, keep: Tensor) -> Tensor:
        """``state.diverged`` with the chains that stop at this step."""
        return torch.where((state.diverged < 0) & ~keep, state.step, state.diverged)


def select(keep: Tensor, new: State, old: State, diverged: Tensor) -> State:
    """``new`` where ``keep``, elsewhere ``old``, chain by chain; the step counts in any case."""

    def choose(after: Tensor, before: Tensor) -> Tensor:
        return torch.where(keep.reshape(-1, *(1,) * (after.ndim - 1)), after, before)

    params, mean, metric, likelihood = pytree.tree_map(choose, tuple(new[1:5]), tuple(old[1:5]))
    return State(new.step, params, mean, metric, likelihood, diverged)
