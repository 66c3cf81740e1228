"""Descent: chains that begin at random weights first minimise the loss, without noise.

A Fisher metric of observed gradients is of little use far from the posterior: since J >= g g^T, a
step lowers the loss by at most eta / a nats per sample (a the friction), however high it is, and
the gradients of the transient stay in the metric's average. So the first steps are RMSProp with
momentum, without noise: the length of its steps is fixed in advance and falls along a cosine. They
are repeated, twice as many each time, until that lowers the loss by less than ``enough`` nats per
sample or the rounds end, which are those that the budget or the clock allows.

The loss is that of a fifth of every chain's rows, which these steps do not see, and a chain begins
where it was lowest. Below that a network fits its rows more closely than the posterior does, and
noise learned from such small residuals keeps it there: chains would need most of a run to return. A
noise that is sampled ends at its most probable size given all rows and the other weights. Every
chain uses only its own rows; burn-in follows, with noise.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from natural_langevin import schedules
from natural_langevin._internal.chains import Params
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.dynamics.underdamped import Underdamped
from natural_langevin.execution.engine import Engine, Mode
from natural_langevin.likelihoods import weight_name
from natural_langevin.posterior.plan import Descent
from natural_langevin.preconditioners import RMSProp
from natural_langevin.priors import of_chains
from natural_langevin.run import time_limit
from natural_langevin.run.problem.starts import losses
from natural_langevin.run.time_limit import NO_LIMIT, TimeLimit

#: How far, and in which steps, the logarithm of a likelihood's own parameter is looked for.
OWN_GRIDS = ((12.0, 0.5), (0.5, 0.05))


def descend(
    moves: LangevinDynamics,
    state: State,
    stream: InMemory,
    num_data: float,
    rule: Descent,
    *,
    mode: Mode,
    pattern: Tensor | None = None,
    limit: TimeLimit = NO_LIMIT,
) -> State:
    """The state of ``moves`` at the end of the descent from ``state``: of every chain the one of
    lowest loss that was looked at.

    ``pattern`` (chain,): chain c begins where chain ``pattern[c]`` comes to, which sees the same
    rows. Chains that differ in their prior's scale need not all go down: what is fitted there is
    the data, and scales are compared from one point."""
    if pattern is not None:
        going_down, number = pattern.unique(return_inverse=True)
        of = _Chains(moves, state, stream).chosen(going_down)
        end = descend(of.moves, of.state, of.stream, num_data, rule, mode=mode, limit=limit)
        return moves.init(_at(end.params, number))._replace(likelihood=_at(end.likelihood, number))
    held_out, every = None, stream
    if stream.num_data >= rule.fewest_rows:
        batch = rule.rows_of_batch(stream.num_data, stream.batch_size)
        stream, rows = stream.parted(rule.held_out, rule.most_held_out, batch)
        held_out = stream.x[rows], stream.y[rows]
    downhill, weights = _downhill(moves, rule), sum(p[0].numel() for p in state.params.values())
    lowest = _Lowest(state)
    network, likelihood = moves.gradients.network, moves.gradients.likelihood
    # Each decides for itself: where a chain starts must not depend on which others are here.
    going = torch.arange(state.chains, device=lowest.loss.device)
    here, began = _Chains(downhill, state, stream), time_limit.clock()
    limit, pace = limit.going_down(), 0.0
    for usual in rule.rounds:
        steps = _fitting(usual, limit.left / pace if pace else math.inf)
        if not steps:
            break
        if len(going) < here.state.chains:
            here = _Chains(downhill, lowest.state, stream).chosen(going)
        before, round_began = lowest.loss[going], time_limit.clock()
        engine = _engine(here, steps, weights, num_data, rule, mode)
        # On a copy: steps are written over the state that they begin at.
        end = here.moves.init(_at(lowest.state.params, going))
        own = None if held_out is None else (held_out[0][going], held_out[1][going])
        for look in range(rule.looks):
            first, last = (steps * k // rule.looks for k in (look, look + 1))
            end, info, _ = time_limit.in_pieces(engine, end, first, last, limit, rule.few)
            loss = info.loss
            if own is not None:
                loss = losses(network, likelihood, end.params, own, end.likelihood)
            lowest.note(going, end, loss.double().masked_fill(end.diverged >= 0, torch.inf))
            if not limit.allows(0.0):
                break
        pace = (time_limit.clock() - round_began) / steps
        going = going[_falling(lowest.loss[going], before, rule.enough, likelihood.discrete)]
        if not len(going) or not limit.allows(0.0):
            break
    # Chains that the clock stopped would have gone on.
    taken = math.inf if len(going) else time_limit.clock() - began
    limit.note_descent(taken / state.chains)
    best = _with_best_own(moves, lowest.state, every, num_data, rule.most_held_out)
    return moves.init(best)._replace(likelihood=lowest.state.likelihood)


def _with_best_own(
    moves: LangevinDynamics, state: State, stream: InMemory, num_data: float, most: int
) -> Params:
    """The weights, with the likelihood's own parameter where the posterior is highest given the
    others: by rows held out alone, two residuals that are small by chance would name it.
    ``most``: rows that are looked at."""
    likelihood, params = moves.gradients.likelihood, state.params
    name = weight_name(likelihood)
    if name is None:
        return params
    rows = stream.drawn(0)[:, :most]
    x, y = stream.x[rows], stream.y[rows]
    with torch.no_grad():
        outputs = vmap(moves.gradients.network.call)(params, x)
        best = params[name]
        for reach, apart in OWN_GRIDS:
            tried = best + torch.arange(-reach, reach + apart / 2, apart).to(best)  # (chain, place)
            height = []
            for u in tried.unbind(1):
                last = u.reshape(-1, *(1,) * (outputs.ndim - 1)).expand_as(outputs[..., :1])
                here = torch.cat([outputs[..., :-1], last], -1)
                loss = vmap(likelihood.log_loss)(here, y, state.likelihood).mean(1)
                height.append(moves.prior[name].log_density(u[:, None]) - num_data * loss)
            place = torch.stack(height, 1).nan_to_num(-torch.inf).argmax(1, keepdim=True)
            best = tried.gather(1, place)
    return params | {name: best}


class _Lowest:
    """The lowest loss that every chain has come to, and its weights there."""

    def __init__(self, state: State) -> None:
        self.state, device = state, state.diverged.device
        self.loss = torch.full((state.chains,), torch.inf, dtype=torch.float64, device=device)

    def note(self, chains: Tensor, end: State, loss: Tensor) -> None:
        """Takes over those of ``chains``, at ``end``, whose loss is lower than before."""
        better = loss < self.loss[chains]
        self.state = self.state._replace(
            params=_put(chains[better], end.params, better, self.state.params),
            likelihood=_put(chains[better], end.likelihood, better, self.state.likelihood),
        )
        self.loss[chains] = torch.where(better, loss, self.loss[chains])


def _downhill(moves: LangevinDynamics, rule: Descent) -> LangevinDynamics:
    """RMSProp with momentum and without noise, on the same network and prior."""
    metric = RMSProp(fresh=True)  # so that no step is longer than memory^(-1/2) lengths
    gradients = moves.gradients.requesting(metric.requests, metric.targets, metric.sharing)
    return dataclasses.replace(
        moves, integrator=Underdamped(friction=rule.friction), gradients=gradients,
        preconditioner=metric, temperature=torch.zeros_like(moves.temperature), keep_mean=False,
        control_variates=None,
    )  # fmt: skip


def _engine(
    here: _Chains, steps: int, weights: int, num_data: float, rule: Descent, mode: Mode
) -> Engine:
    """Of one round, whose step size falls along a cosine."""
    first = next(iter(here.state.params.values()))
    eta = rule.friction * rule.length * min(1.0, (rule.small / weights) ** 0.25)
    rates = RatesTable.build(
        schedules.cyclical(eta, steps), lambda step: max(rule.memory, 1 / (step + 1)),
        stop=steps, chains=len(first), dtype=first.dtype, device=first.device,
    )  # fmt: skip
    return Engine(here.moves, here.stream, rates, num_data, mode=mode)


def _fitting(usual: int, most: float) -> int:
    """The steps of a round, where there is time for so many: all of them where the next round,
    twice as long, would not fit; none where they are fewer than half a round."""
    if most < usual / 2:
        return 0
    return usual if most >= 3 * usual else int(most)


def _falling(now: Tensor, before: Tensor, enough: float, discrete: bool) -> Tensor:
    """Which chains' losses fell by enough for another round: (chain,) bool."""
    falling = now < before - enough
    # A loss of at least 0 cannot fall by so much again.
    return falling & (now >= enough) if discrete else falling


class _Chains(NamedTuple):
    """Chains that move together."""

    moves: LangevinDynamics
    state: State
    stream: InMemory

    def chosen(self, chains: Tensor) -> _Chains:
        """These of them, each with its prior, randomness and rows."""
        moves = dataclasses.replace(
            self.moves, prior=of_chains(self.moves.prior, chains),
            temperature=self.moves.temperature[chains], noise=self.moves.noise[chains],
            power=None if self.moves.power is None else self.moves.power[chains],
            labels=self.moves.labels[chains],
        )  # fmt: skip
        return _Chains(
            moves, moves.init(_at(self.state.params, chains)), self.stream.of_chains(chains)
        )


def _at(tree: Params, chains: Tensor) -> Params:
    """The values of these chains, in tensors of their own."""
    return {k: v[chains] for k, v in tree.items()}


def _put(chains: Tensor, new: Params, which: Tensor, old: Params) -> Params:
    """``old`` with the rows ``which`` of ``new`` at ``chains``."""
    return {k: v.index_copy(0, chains, new[k][which]) for k, v in old.items()}
