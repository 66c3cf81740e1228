"""Configurational temperature: are the samples as hot as they should be?

Under pi ~ exp(-U / T), integration by parts gives, for every parameter and any fixed centre c
(the virial theorem),

    E[(theta_i - c_i) dU/dtheta_i] = T,          U = -ln [alpha(theta) prod_n p_theta(y_n | x_n)].

So the mean of (theta - c) . dU over kept samples, divided by the number of parameters, reads the
temperature of the samples themselves, whatever the dynamics were. Step-size bias shows in it: on a
Gaussian target of curvature h, a step eta makes the samples of plain Langevin T / (1 - eta h / 2),
and minibatch noise adds to that. Hotter than T: biased. Colder: the chain has not explored the
posterior yet (or the noise is too small).

c is each chain's mean over the *other* half of its draws: the mean of the same draws is correlated
with them, and would give too low a value. dU uses N times the mean gradient on fresh random data,
which is unbiased for any batch size, and exact with all data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin.diagnostics import ranks
from natural_langevin.diagnostics.energy import Call, energy_gradient
from natural_langevin.diagnostics.reading import Reading
from natural_langevin.likelihoods import Likelihood
from natural_langevin.priors import Prior


@dataclass(frozen=True)
class Configurational:
    """Temperature of the samples as a ratio to T: of all parameters, and of every tensor.

    Errors are Monte-Carlo standard errors from the effective sample size of the series.
    """

    temperature: Reading
    tensors: dict[str, Reading]

    @property
    def bias(self) -> float:
        """The step-size bias indicator: 0.1 means variances about a tenth too large."""
        return self.temperature.value - 1


def measure(
    call: Call,
    likelihood: Likelihood,
    prior: Mapping[str, Prior],
    samples: Params,
    learned: dict[str, Tensor],
    temperature: Tensor,
    data: tuple[Tensor, Tensor],
    *,
    like: Tensor,
    chosen_chains: list[int],
    num_data: float | Tensor,
    batch_size: int,
    max_draws: int,
    of_all: Callable[[Tensor], Tensor] = lambda rows: rows,
    seed: int = 0,
) -> Configurational:
    """From ``samples`` (chain, draw, *shape) at ``temperature`` (chain,), of the chosen chains.

    ``like`` is a tensor with the device and precision of the network. If other processes hold other
    chains, ``of_all`` makes rows of all chains from those of the chains in ``samples``,
    ``learned``, ``prior`` and ``num_data`` (times the power of the likelihood, one value per
    chain); ``temperature`` and ``chosen_chains`` are of all.

    At most ``max_draws`` draws of every chain are used, each on ``batch_size`` fresh data."""
    draws = next(iter(samples.values())).shape[1]
    if draws < 8:
        raise ValueError(
            f"the samples' temperature needs at least 8 draws, got {draws}: lower thin"
        )
    half = draws // 2

    def centre(s: Tensor) -> Tensor:  # stored samples may be on another device, in half precision
        return s.to(torch.float64).mean(1).to(like.device, like.dtype)

    means = {k: (centre(s[:, :half]), centre(s[:, half:])) for k, s in samples.items()}
    chosen = torch.linspace(0, draws - 1, min(draws, max_draws)).round().long().tolist()
    series = []
    for draw, batch in zip(chosen, _batches(data, batch_size, seed), strict=False):
        theta = {k: s[:, draw].to(like.device, like.dtype) for k, s in samples.items()}
        v = energy_gradient(
            call, likelihood, prior, num_data, theta, learned, batch, chain_axis=False
        )
        other = 1 if draw < half else 0
        parts = ((theta[k] - means[k][other]) * v[k] for k in theta)
        sums = [num_data * d.double().reshape(len(d), -1).sum(1) for d in parts]
        series.append(torch.stack(sums, dim=1))
    virial = of_all(torch.stack(series, dim=1)).cpu() / temperature.double().cpu()[:, None, None]
    virial = virial[chosen_chains]  # (chain, draw, tensor)
    sizes = torch.tensor([s[0, 0].numel() for s in samples.values()])
    return Configurational(
        _mean(virial.sum(2) / sizes.sum()),
        {name: _mean((virial / sizes)[:, :, k]) for k, name in enumerate(samples)},
    )


def _batches(data: tuple[Tensor, Tensor], size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random rows for every draw; all rows if there are at most ``size``."""
    x, y = data
    generator = torch.Generator().manual_seed(seed)
    while True:
        if size >= len(x):
            yield x, y
            continue
        index = torch.randperm(len(x), generator=generator)[:size].to(x.device)
        yield x[index], y[index]


def _mean(series: Tensor) -> Reading:
    """Mean over (chain, draw) with its Monte-Carlo standard error."""
    values = series.double().numpy()
    return Reading(float(values.mean()), float(ranks.error_of_mean(values[:, :, None])[0]))
