"""Self-check: before the first step, the statistics must equal those of the per-sample loop.

The plan sees a layer's calls, not what they mean: a rule may be wrong, or a network may fold its
axes in an unusual order. Each would give wrong statistics without an error, so a few samples are
checked against the definition once per run. A parameter that fails is from then on computed from
the whole network, sample by sample; a network that has no per-sample gradients is refused.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin._internal.light_autograd import grad
from natural_langevin.likelihoods import State as LikelihoodState
from natural_langevin.statistics import Evaluation, Gradients, Network

log = logging.getLogger("natural_langevin")

#: Samples looked at: several, so that mixed-up axes show.
SAMPLES = 3
#: Relative error above which the statistics are wrong. Rounding alone can push one unit of one
#: sample across a kink, which in a small layer is a few per cent; wrong statistics are far off.
TOLERANCE = 0.05
#: Gradients below this part of the network's largest are rounding: those of a bias that the norm
#: layer after it takes away are nothing else. In units of the dtype's own.
ROUNDING = 100


def check_statistics(
    gradients: Gradients, params: Params, state: LikelihoodState, x: Tensor, y: Tensor
) -> None:
    """Compares the first chain's gradient, second moments and bias rows with the definition."""
    if not gradients.requests or "samples" in gradients.requests:
        return
    with full_precision(gradients.network):
        wrong = _wrong_parameters(gradients, params, state, x, y)
        if wrong and gradients.distrust(set(wrong)):
            log.info(
                "the rules do not fit %s: using per-sample gradients of the whole network",
                ", ".join(map(repr, wrong)),
            )
            wrong = _wrong_parameters(gradients, params, state, x, y)
    if wrong:
        name, error = next(iter(wrong.items()))
        raise ValueError(
            f"the Fisher statistics of {name!r} do not match its per-sample gradients (relative "
            f"error {error:.2g}): does the network do something else with a batch of one? Use "
            "preconditioners.RMSProp() or Euclidean() for this network"
        )


@contextmanager
def full_precision(network: Network) -> Iterator[None]:
    """Without autocast and without TF32, of products and of cuDNN's convolutions: what is checked
    are the rules. Rounded products of a batch and of a single sample differ by more, through many
    layers and across kinks, than a wrong rule might."""
    cudnn, autocast = torch.backends.cudnn, network.autocast
    precision, convolutions = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32, network.autocast = False, None
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        cudnn.allow_tf32, network.autocast = convolutions, autocast


def _wrong_parameters(
    gradients: Gradients, params: Params, state: LikelihoodState, x: Tensor, y: Tensor
) -> dict[str, float]:
    """The parameters whose statistics are wrong, each with its relative error."""
    x, y = _worst(gradients, params, state, x, y)
    measured, summed = _measure(gradients, params, state, x, y)
    samples = _per_sample_loop(gradients, params, measured, x, y)
    second = {k: g.square().mean(0) for k, g in samples.items()}
    rest = max(ROUNDING * torch.finfo(s.dtype).eps * float(s.max()) ** 0.5 for s in second.values())
    wrong: dict[str, float] = {}
    for name, g in samples.items():
        # Relative to the samples' own gradients, which may cancel in the mean.
        error = _relative(measured.gradient[name][0] - g.mean(0), second[name].sqrt(), rest)
        if not error <= TOLERANCE and name in summed:
            wrong[name] = error  # by a rule
        elif not error <= TOLERANCE:
            raise ValueError(
                f"the gradient of {name!r} is not the mean of its per-sample gradients (relative "
                f"error {error:.2g}): do samples influence each other, or is the batch not the "
                "first axis of x? Use preconditioners.RMSProp() or Euclidean() for this network"
            )
    errors = {
        k: [_relative(measured.statistics.second[k][0] - s, s, rest**2)] for k, s in second.items()
    }
    for bias, row in measured.statistics.cross.items():
        for w, found in row.items():
            b = samples[bias].reshape(
                *samples[bias].shape, *(1,) * (found.ndim - samples[bias].ndim)
            )
            # By Cauchy and Schwarz no larger than this; relative to itself it may be a mere rest.
            scale = (b.square().mean(0).clamp_min(rest**2) * second[w]).sqrt()
            errors[w].append(_relative(found[0] - (b * samples[w]).mean(0), scale, rest**2))
    return wrong | {k: max(e) for k, e in errors.items() if not max(e) <= TOLERANCE}


def _worst(
    gradients: Gradients, params: Params, state: LikelihoodState, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """The samples that the first chain fits worst: of those that it has learned, the gradient of a
    class is a difference of ones, and all that is left of it is rounding."""
    own = {name: value[0] for name, value in params.items()}
    learned = {name: value[0] for name, value in state.items()}
    with torch.no_grad():
        loss = gradients.likelihood.log_loss(gradients.network.call(own, x.clone()), y, learned)
    if loss.ndim != 1 or len(loss) != len(x):
        return x[:SAMPLES], y[:SAMPLES]
    rows = loss.nan_to_num(0.0, 0.0, 0.0).topk(min(SAMPLES, len(x))).indices.sort().values
    return x[rows], y[rows]


def _measure(
    gradients: Gradients, params: Params, state: LikelihoodState, x: Tensor, y: Tensor
) -> tuple[Evaluation, frozenset[str]]:
    """What ``gradients`` says; and the parameters whose gradients rules have formed."""
    plain = copy.copy(gradients)
    plain.requests = frozenset({"second", "cross"})  # of the gradients that all others come from
    plain.targets = "data"  # drawn labels would be another sum
    plain.sharing = "exact"  # the approximation starts from the same pieces
    plain.clip = plain.data_parallel = None  # every process checks for itself
    plain.prepare(params, x)
    found = plain(
        {name: value[:1] for name, value in params.items()},
        {name: value[:1] for name, value in state.items()},
        (x, y),
        chain_axis=False,
        key=torch.zeros(1, 2, dtype=torch.int32, device=x.device),
        step=torch.zeros((), device=x.device),
    )
    return found, plain.summed


def _per_sample_loop(
    gradients: Gradients, params: Params, measured: Evaluation, x: Tensor, y: Tensor
) -> Params:
    """d loss_n / d theta by the definition, one sample after the other: (n, *shape)."""
    learned = {name: value[0] for name, value in measured.likelihood.items()}

    def loss(p: Params, x_n: Tensor, y_n: Tensor) -> Tensor:
        return gradients.likelihood.log_loss(gradients.network.call(p, x_n), y_n, learned).sum()

    plain = {name: value[0] for name, value in params.items()}
    found = [grad(loss)(plain, x[n : n + 1], y[n : n + 1]) for n in range(len(x))]
    return {name: torch.stack([g[name] for g in found]) for name in plain}


def _relative(error: Tensor, reference: Tensor, rest: float) -> float:
    """By how much they differ; what is smaller than ``rest`` in all its numbers is as good as 0."""
    scale = max(float(reference.norm()), rest * reference.numel() ** 0.5)
    return float(error.norm()) / scale if scale > 1e-12 else float(error.norm() > 1e-12)
