"""Minibatch heat: the injected noise is reduced by the minibatch's own noise (SGFS).

A minibatch of B of the N data, drawn independently at every step, moves a step by eta C (g_B - g),
which has

    (eta^2 / b) C Sigma C,    1/b = (1/B) (N - B)/(N - 1),    Sigma: covariance of the gradients

and where C is about Sigma^{-1} the chain is hotter by eta N / (2 b). The correction (Ahn,
Korattikara & Welling 2012) injects what is missing,

    max(0, 2 h eta T / N C - (eta^2 / b) C Sigma C)        h = 1, or the friction a with momentum.

Sigma is taken for J, the second moments that a Fisher metric holds. The two differ by g g^T, which
vanishes where the chain samples, and by what the metric leaves out of J. In the coordinates of the
factor A, A^T (J + diag eps) A = Id, hence A^T J A = Id - A^T diag(eps) A, and with two normals

    A [ sqrt(2 h eta T / N - eta^2 / b) z_1 + sqrt(eta^2 / b) A^T sqrt(eps) z_2 ]

has exactly that covariance: no matrix is formed and no diagonal approximated. (It is exact for
diagonal, quasi-diagonal, unit and full J as stored; K-FAC splits eps over two factors, so that a
little less is injected.) Directions that the data do not determine keep all of their noise.

Range: eta <= 2 h b T / N. Beyond it the minibatch alone is too hot; then eta^2 / b is replaced by 2
h eta T / N in both terms, which is the most that can be subtracted, and a warning gives the
numbers.

Minibatches that are parts of one shuffled epoch, as of data in memory, are not independent: their
errors cancel over the epoch, and a chain that moves little within it is heated far less than that.
The correction is for independent minibatches: given to ``step``, or of a DataLoader whose sampler
is ``RandomSampler(replacement=True)``, shared by the chains (``data.SharedBatches``). With shuffled
epochs it leaves a chain too cold, and ``sample`` warns.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, per_chain
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import Conditions, LangevinDynamics
from natural_langevin.dynamics.rates import Rates
from natural_langevin.preconditioners import Factor, Preconditioner
from natural_langevin.preconditioners.base import FisherPreconditioner

log = logging.getLogger("natural_langevin")

#: Of whoever corrects for minibatches of one shuffled epoch.
COLD_EPOCHS = (
    "correct_heat: minibatches that are parts of one shuffled epoch have less noise than the "
    "independent ones that the correction assumes: the chain becomes too cold (0.69 of the "
    "variance in a linear regression at step size B / N). Give independent minibatches "
    "(data.SharedBatches of a DataLoader with RandomSampler(replacement=True)), or "
    "correct_heat=False"
)


def corrected_noise(
    on: LangevinDynamics,
    metric: Factor,
    state: State,
    rates: Rates,
    num_data: float | Tensor,
    *,
    batch_size: int,
    share: float = 1.0,
) -> Params:
    """The noise to inject in place of sqrt(2 ``share`` eta T / N) A z: reduced by the
    minibatch's."""
    theta, eta = state.params, rates.step_size
    total = 2 * share * eta * on.temperature_at(rates.kind) / on.weight(num_data)
    heat = torch.minimum(eta.square() * _inverse_size(batch_size, num_data), total)
    one, two = (on.standard_normal(theta, state.step, draw) for draw in range(2))
    damping = on.damping(theta, num_data)
    two = {k: per_chain(damping[k], z).sqrt() * z for k, z in two.items()}
    two = metric.transpose(two)
    left, heat = (total - heat).sqrt(), heat.sqrt()
    return metric.forward(
        {k: per_chain(left, z) * z + per_chain(heat, z) * two[k] for k, z in one.items()}
    )


def _inverse_size(batch_size: int, num_data: float | Tensor) -> Tensor | float:
    """1 / b, with b the effective batch size of drawing without replacement: 0 for all data."""
    return (1 - (batch_size - 1) / (num_data - 1)) / batch_size


def refuse_metric(preconditioner: Preconditioner) -> None:
    """Refuses a metric that is not a Fisher metric: it does not hold the gradients' covariance."""
    if not isinstance(preconditioner, FisherPreconditioner):
        raise ValueError(
            "correct_heat=True needs the second moments of the gradients, which "
            f"{preconditioner!r} does not hold: use a Fisher metric, such as "
            "preconditioners.QuasiDiagonalFisher(), or correct_heat=False"
        )


def warn_beyond_range(run: Conditions, on: LangevinDynamics, share: float = 1.0) -> None:
    """Warns if the minibatch's own noise exceeds the temperature; values by chain."""
    step_size, batch_size, num_data, _ = run
    if batch_size >= num_data:
        return
    inverse = _inverse_size(batch_size, num_data) * on.weight(num_data)
    limit = 2 * share * on.temperature.double() / inverse
    excess = step_size.double().to(limit.device) / limit
    if not bool((excess > 1).any()):
        return
    worst = int(excess.argmax())
    log.warning(
        "correct_heat: the step size %.3g is above 2 B T / N%s = %.3g for minibatches of %d of %g "
        "data: their noise alone is %.3g times what the temperature allows. Use smaller steps or "
        "larger minibatches", float(step_size[worst]),
        "" if share == 1 else f" times the friction {share:g}", float(limit[worst]), batch_size,
        num_data, float(excess[worst]),
    )  # fmt: skip
