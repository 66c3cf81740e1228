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
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin import random
from natural_langevin.chains import average, per_chain
from natural_langevin.gradients import Gradients, Params
from natural_langevin.preconditioners import Preconditioner
from natural_langevin.priors import Prior


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
        """One pass of Algorithm 1's loop. Comments quote the paper's lines."""
        theta, eta = state.params, rates.step_size
        # "forward x through the network, compute loss; backpropagate: g <- average of gradients"
        evaluation = self.gradients(
            theta,
            state.likelihood,
            batch,
            chain_axis=chain_axis,
            key=random.stream(self.labels, state.step),
            step=state.step,
        )
        g = evaluation.gradient
        # "incorporate gradient of prior: g <- g + (1/N) Sigma_0^{-1} (theta - theta_0)"
        v = {k: g[k] - self.prior[k].gradient(theta[k]) / num_data for k in theta}
        # "update preconditioner C using current sample and gradient"  (g without the prior)
        metric = self.preconditioner.update(state.metric, g, evaluation.statistics, rates.decay)
        C = self.preconditioner.factor(metric)
        # "apply preconditioner: g <- C g"
        drift = C.apply(v)
        # "sample preconditioned noise: xi ~ N(0, C) = C^{1/2} N(0, Id)"
        xi = C.sample(self._standard_normal(theta, state.step))
        # "update parameters: theta <- theta - eta_t g + sqrt(2 eta_t / N) xi"
        scale = torch.sqrt(2 * eta * self.temperature / num_data)
        moved = {
            k: theta[k] - per_chain(eta, theta[k]) * drift[k] + per_chain(scale, theta[k]) * xi[k]
            for k in theta
        }
        # "update posterior mean: theta_mean <- (1 - mu_t) theta_mean + mu_t theta"
        mean = {k: average(state.mean[k], moved[k], rates.mean) for k in theta}
        new = State(state.step + 1, moved, mean, metric, evaluation.likelihood, state.diverged)
        return self._stop_diverged(state, new, evaluation.loss)

    def _standard_normal(self, like: Params, step: Tensor) -> Params:
        """z ~ N(0, Id), addressed by (seed, chain, step, position among all parameters)."""
        sizes = [math.prod(p.shape[1:]) for p in like.values()]
        draws = random.normal(random.stream(self.noise, step), sum(sizes))
        parts = draws.to(next(iter(like.values())).dtype).split(sizes, dim=1)
        return {k: z.reshape(p.shape) for (k, p), z in zip(like.items(), parts, strict=True)}

    def _stop_diverged(self, old: State, new: State, loss: Tensor) -> tuple[State, Info]:
        """A chain whose loss is not finite stands still from here on.

        The loss at theta is the one number that every parameter reaches, and it is known before
        the update, so that stopping a chain costs no second pass over the parameters.
        """
        running = old.diverged < 0
        keep = running & torch.isfinite(loss)
        diverged = torch.where(running & ~keep, old.step, old.diverged)

        def select(after: Tensor, before: Tensor) -> Tensor:
            return torch.where(keep.reshape(-1, *(1,) * (after.ndim - 1)), after, before)

        params, mean, metric, likelihood = pytree.tree_map(select, tuple(new[1:5]), tuple(old[1:5]))
        state = State(new.step, params, mean, metric, likelihood, diverged)
        return state, Info(loss, diverged >= 0)
