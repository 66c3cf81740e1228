"""Distillation: one network taught to predict what the whole ensemble predicts.

The student minimises, over inputs that need no labels, the mean Kullback-Leibler divergence from
the ensemble's predictive distribution p to its own q:

* classes: sum_k p_k ln(p_k / q_k), with p the ensemble's mean probabilities;
* numbers: of Gaussians N(m, v) with the ensemble's mean and total variance,
  [ln(w / v) + (v + (m - mu)^2) / w - 1] / 2. A student with twice the outputs gives mu and ln w
  (as ``HeteroscedasticGaussian`` reads them); one with as many outputs as targets gives mu alone,
  and w = v;
* anything else: the cross-entropy -E_p[ln q], the divergence up to a constant, over draws from the
  ensemble; a student has the network's own outputs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from natural_langevin.likelihoods import Likelihood
from natural_langevin.likelihoods.predictive import Mixture, of_classes
from natural_langevin.posterior.prediction import Prediction

log = logging.getLogger("natural_langevin")

Divergence = Callable[[Tensor, Tensor], Tensor]  # (student's outputs, rows) -> mean KL


#: Draws from the ensemble for every input, where the divergence has no closed form.
DRAWS = 64


def divergence(
    prediction: Prediction, law: Distribution | None, likelihood: Likelihood, seed: int = 0
) -> Divergence:
    """Mean KL of the rows given by their indices, from the student's outputs for them."""
    if law is None or (isinstance(law, Mixture) and law.is_normal):
        return _gaussian(prediction)
    if isinstance(law, Mixture):
        state = law.mean_state
        draws = law.sample((DRAWS,), seed=seed).to(prediction.mean.dtype)

        def expected(outputs: Tensor, rows: Tensor) -> Tensor:
            many = outputs.repeat(DRAWS, *(1,) * (outputs.ndim - 1))
            return likelihood.log_loss(many, draws[:, rows].flatten(0, 1), state).mean()

        return expected
    classes, p = type(law), prediction.mean

    def cross_entropy(outputs: Tensor, rows: Tensor) -> Tensor:
        q = likelihood.distribution(outputs, {})
        teacher = of_classes(classes, p[rows])
        assert q is not None
        every = teacher.enumerate_support()
        cross = -(teacher.log_prob(every).exp() * q.log_prob(every.reshape(-1, *q.batch_shape)))
        return (cross.sum(0) - teacher.entropy()).mean()

    return cross_entropy


def _gaussian(prediction: Prediction) -> Divergence:
    p = prediction.mean
    variance = prediction.total if prediction.total is not None else torch.ones_like(p)

    def gaussian(outputs: Tensor, rows: Tensor) -> Tensor:
        m, v = p[rows], variance[rows]
        if outputs.numel() == m.numel():
            return ((outputs.reshape(m.shape) - m).square() / v).mean() / 2
        if outputs.numel() != 2 * m.numel():
            raise ValueError(
                f"a student of this regression gives {m[0].numel()} outputs (the mean) or twice "
                f"as many (mean, then log variance), got {outputs[0].numel()}"
            )
        mu, log_w = (part.reshape(m.shape) for part in outputs.chunk(2, dim=-1))
        return 0.5 * (log_w - v.log() + (v + (m - mu).square()) / log_w.exp() - 1).mean()

    return gaussian


def train(
    student: nn.Module,
    x: Tensor,
    loss: Divergence,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> nn.Module:
    """Adam with a rate that falls to zero along half a cosine; torch's own generators untouched."""
    for name, count in (("steps", steps), ("batch_size", batch_size)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count!r}")
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate!r}")
    if len(x) == 0:
        raise ValueError("distilling needs inputs, got none")
    student.requires_grad_(True)
    optimizer = torch.optim.Adam(student.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    value = torch.zeros(())
    with torch.random.fork_rng(), torch.enable_grad():  # a student with dropout draws from torch's
        torch.manual_seed(seed)
        for _ in range(steps):
            if len(order) == 0:
                order = torch.randperm(len(x), generator=generator)
            rows, order = order[:batch_size].to(x.device), order[batch_size:]
            optimizer.zero_grad()
            value = loss(student(x[rows]), rows)
            value.backward()
            optimizer.step()
            schedule.step()
    log.info("distilled: the last batch's mean KL divergence is %.4f nats", float(value.detach()))
    return student.requires_grad_(False).eval()
