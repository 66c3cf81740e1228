"""Algorithm 1 on the parameters that a metric couples, with their state as the optimizer keeps it.

``optimizer`` is a ``NaturalLangevin``, whose own module imports this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.overdamped import Overdamped
from natural_langevin.dynamics.rates import Rates, RatesTable
from natural_langevin.optim import shards
from natural_langevin.optim.groups import common_settings
from natural_langevin.optim.noise import LocalDynamics
from natural_langevin.statistics import Basis, Evaluation, Statistics
from natural_langevin.types import Params

if TYPE_CHECKING:
    from natural_langevin.optim.optimizer import NaturalLangevin


def update(
    optimizer: NaturalLangevin,
    block: tuple[str, ...],
    gradient: Params,
    statistics: Statistics,
    step: int,
    rates: dict[float, Rates],
) -> None:
    """Algorithm 1 for parameters that belong together; ``rates`` by lr, as far as known."""
    layout = optimizer._layout
    params = {k: optimizer._names.params[k] for k in block}
    if _frozen(block, gradient):
        return
    lr, temperature = common_settings(optimizer.param_groups, params, optimizer.preconditioner)
    first = next(iter(params.values()))
    theta = {k: shards.local(p.detach())[None] for k, p in params.items()}
    own = {k: state_of(optimizer, k) for k in block}
    if not any(p.numel() for p in theta.values()):
        return  # more ranks than rows
    state = State(
        step=torch.tensor(step, device=first.device),
        params=theta,
        mean={k: own[k]["mean"][None] for k in block},
        metric=layout.read(own, block),
        likelihood={},
        diverged=torch.full((1,), -1, device=first.device),
    )
    loss = torch.zeros(1, device=first.device)
    evaluation = Evaluation(loss, {k: gradient[k] for k in block}, statistics, {})
    if lr not in rates:
        rates[lr] = rates_at(optimizer, step, lr)
    dynamics = _dynamics(optimizer, first, temperature)
    new = dynamics.integrator.update(dynamics, state, evaluation, rates[lr], optimizer.num_data)
    for k, p in params.items():
        shards.local(p).copy_(new.params[k][0])
        own[k]["mean"] = new.mean[k][0]
    layout.write(own, block, new.metric)
    for k, p in params.items():
        optimizer.state[p].update({key: shards.like(p, rows) for key, rows in own[k].items()})


def _frozen(block: tuple[str, ...], gradient: Params) -> bool:
    """Whether nothing of the block is trained any more; a part of it may not be frozen alone."""
    frozen = [k for k in block if k not in gradient]
    if frozen and len(frozen) < len(block):
        raise ValueError(
            f"{frozen[0]!r} was frozen after the optimizer was made, but the metric couples it "
            f"with {', '.join(repr(k) for k in block if k not in frozen)}: freeze all of them, "
            "or make a new optimizer"
        )
    return bool(frozen)


def state_of(optimizer: NaturalLangevin, name: str) -> dict[str, Any]:
    """This rank's rows of a parameter's state, on its device; made where there is none yet."""
    layout, p = optimizer._layout, optimizer._names.params[name]
    if "mean" not in optimizer.state[p]:
        block = next(b for b in layout.blocks if name in b)
        params = {k: optimizer._names.params[k] for k in block}
        theta = {k: shards.local(q.detach())[None] for k, q in params.items()}
        new: dict[str, dict[str, Any]] = {k: {"mean": theta[k][0].clone()} for k in block}
        layout.write(new, block, layout.init(theta))
        for k, q in params.items():
            optimizer.state[q].update({key: shards.like(q, rows) for key, rows in new[k].items()})
    rows = {key: shards.local(value) for key, value in optimizer.state[p].items()}
    return {key: v.to(device=p.device, dtype=p.dtype) for key, v in rows.items()}


def basis(optimizer: NaturalLangevin) -> Basis:
    """In which basis the metric wants the statistics of the next passes; without chain axis."""
    layout, preconditioner = optimizer._layout, optimizer.preconditioner
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for block in layout.blocks if "rotated" in preconditioner.requests else ():
        metric = layout.read({k: state_of(optimizer, k) for k in block}, block)
        own = preconditioner.basis(metric)
        found |= {w: (u_a[0], u_g[0]) for w, (u_a, u_g) in own.items()}
    return found


def rates_at(optimizer: NaturalLangevin, step: int, lr: float) -> Rates:
    """eta, gamma and mu of one step."""
    first = next(iter(optimizer._names.params.values()))
    return RatesTable.build(
        float(lr), optimizer.preconditioner.ema_schedule(), optimizer.mean_rate,
        start=step, stop=step + 1, chains=1, dtype=first.dtype, device=first.device,
        refresh_steps=optimizer.preconditioner.refresh_steps,
    ).row(step)  # fmt: skip


def _dynamics(optimizer: NaturalLangevin, like: Tensor, temperature: float) -> LangevinDynamics:
    """One for every device, precision and temperature among the groups; made once."""
    key = (like.device, like.dtype, temperature)
    if key not in optimizer._dynamics_of:
        chain = torch.tensor([optimizer.chain], device=like.device)
        optimizer._dynamics_of[key] = LocalDynamics(
            Overdamped(),
            gradients=optimizer._fisher.gradients,
            preconditioner=optimizer.preconditioner,
            prior=optimizer.prior,
            temperature=torch.tensor([temperature], dtype=like.dtype, device=like.device),
            noise=random.origin(optimizer.seed, random.NOISE, chain),
            labels=random.origin(optimizer.seed, random.LABELS, chain),
            offsets={k: shards.offset(p) for k, p in optimizer.sampled().items()},
        )
    return optimizer._dynamics_of[key]
