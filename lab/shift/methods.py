"""Four ways to a predictive distribution, at the same number of gradients.

The posterior's chains, the networks of a deep ensemble and one network with dropout each take
``chains`` times ``steps`` minibatches in all; predictions average as many networks (or masks).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from natural_langevin import Langevin, likelihoods, models, priors, random, schedules
from natural_langevin._internal.chains import Params
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics import Descent, RatesTable
from natural_langevin.dynamics.descent import forward, hidden_units
from natural_langevin.execution.engine import Engine

#: Inputs (n, D) to the class probabilities of every network: (network, n, classes).
Members = Callable[[Tensor], Tensor]
DROPOUT = 0.5
LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Settings:
    """Sizes of the comparison; ``members``: networks that a prediction averages."""

    steps: int = 6000
    chains: int = 4
    batch_size: int = 100
    hidden: tuple[int, ...] = (400, 400)
    members: int = 40
    step_size: float = 5e-4
    prior_variance: float = 0.1
    images: int = 2000
    seed: int = 0


def posterior(x: Tensor, y: Tensor, classes: int, settings: Settings) -> Members:
    """Algorithm 1 with QDOP at T = 1, the last two thirds of every chain."""
    sampler = Langevin(
        models.mlp(x.shape[1], classes, settings.hidden),
        likelihoods.Categorical(),
        prior=priors.Gaussian(settings.prior_variance),
        step_size=schedules.polynomial(settings.step_size, offset=2000),
        chains=settings.chains,
        init="fan_in",
        mean_rate=None,
        seed=settings.seed,
        device=x.device,
    )
    draws = max(1, settings.members // settings.chains)
    thin = max(1, settings.steps * 2 // 3 // draws)
    found = sampler.sample(
        (x, y), steps=settings.steps, batch_size=settings.batch_size,
        burn_in=settings.steps - draws * thin, thin=thin, partial=False, progress=False,
    )  # fmt: skip

    def members(inputs: Tensor) -> Tensor:
        samples = found.predict(inputs.to(x.device)).samples
        assert samples is not None
        return samples.cpu()

    return members


def descended(
    x: Tensor, y: Tensor, classes: int, settings: Settings, *, networks: int, rate: float
) -> Params:
    """``networks`` trained by gradient descent, the step size halved twice: {name: (network, ...)}.

    One network alone takes as many steps as the others together."""
    steps = settings.steps * settings.chains // networks
    chain = torch.arange(networks, device=x.device)
    stream = InMemory(
        x, y, batch_size=settings.batch_size, chain=chain, seed=settings.seed, device=x.device
    )
    schedule = schedules.halving(LEARNING_RATE, every=max(1, steps // 3))
    table = RatesTable.build(schedule, stop=steps, chains=networks, device=x.device)
    origin = random.origin(settings.seed, random.NOISE, chain) if rate else None
    template = models.mlp(x.shape[1], classes, settings.hidden).to(x.device)
    own = {k: p.detach() for k, p in template.named_parameters()}
    start = models.fan_in_init(own, chain=chain, seed=settings.seed)
    descent = Descent.of(start, torch.full((networks,), rate, device=x.device), origin)
    state, _ = Engine(descent, stream, table, len(x), mode="auto").run(
        descent.init(start), 0, steps
    )
    return state.params


def ensemble(x: Tensor, y: Tensor, classes: int, settings: Settings) -> Members:
    """As many independent networks as the posterior has chains."""
    params = descended(x, y, classes, settings, networks=settings.chains, rate=0.0)
    return _networks(params, x.shape[1], classes, settings)


def single(x: Tensor, y: Tensor, classes: int, settings: Settings) -> Members:
    """One network, trained as long as all the others together."""
    params = descended(x, y, classes, settings, networks=1, rate=0.0)
    return _networks(params, x.shape[1], classes, settings)


def dropout(x: Tensor, y: Tensor, classes: int, settings: Settings) -> Members:
    """One network with dropout, at test time too."""
    params = descended(x, y, classes, settings, networks=1, rate=DROPOUT)
    chain = torch.zeros(1, dtype=torch.int64, device=x.device)
    origin = random.origin(settings.seed, random.LABELS, chain)
    rate = torch.full((1,), DROPOUT, device=x.device)

    def members(inputs: Tensor) -> Tensor:
        found, inputs = [], inputs.to(x.device)
        for mask in range(settings.members):
            key = random.stream(origin, mask)
            masks = random.uniform(key, hidden_units(params) * len(inputs))
            found.append(forward(params, inputs, rate, masks).softmax(-1))
        return torch.cat(found).cpu()

    return members


def _networks(params: Params, inputs: int, classes: int, settings: Settings) -> Members:
    model = models.mlp(inputs, classes, settings.hidden)
    device = next(iter(params.values())).device

    def members(x: Tensor) -> Tensor:
        with torch.no_grad():
            here = x.to(device)
            return vmap(lambda p: functional_call(model, p, (here,)).softmax(-1))(params).cpu()

    return members


METHODS: dict[str, tuple[str, Callable[[Tensor, Tensor, int, Settings], Members]]] = {
    "posterior": ("QDOP, T = 1", posterior),
    "ensemble": ("deep ensemble", ensemble),
    "dropout": ("MC dropout", dropout),
    "single": ("one network", single),
}


def timed(
    method: str, x: Tensor, y: Tensor, classes: int, settings: Settings
) -> tuple[Members, float]:
    """The method's networks, and the seconds it took to train them."""
    began = time.perf_counter()
    return METHODS[method][1](x, y, classes, settings), time.perf_counter() - began
