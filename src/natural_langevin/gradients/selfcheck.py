"""Self-check: before the first step, the rules' statistics must equal the per-sample loop's.

Hooks see a layer's calls, not what a network does with its weights elsewhere: tied weights, a
weight used through ``torch.nn.functional``, a batch that is not the first axis. Each gives wrong
statistics without an error, so a few samples are checked against the definition once per run.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.func import grad

from natural_langevin.gradients import Gradients, Params
from natural_langevin.likelihoods import State as LikelihoodState

#: Samples looked at: several, so that mixed-up axes show.
SAMPLES = 3
#: Relative error above which the statistics are wrong. Rounding alone can push one unit of one
#: sample across a kink, which in a small layer is a few per cent; wrong statistics are far off.
TOLERANCE = 0.05


def check_statistics(
    gradients: Gradients, params: Params, state: LikelihoodState, x: Tensor, y: Tensor
) -> None:
    """Raises if second moments differ from mean_n (d loss_n / d theta)^2 in the first chain."""
    if gradients.need != "diagonal":
        return
    # Reduced-precision products (TF32) move activations across their kinks: compare without them.
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        _check(gradients, params, state, x, y)
    finally:
        torch.set_float32_matmul_precision(precision)


def _check(
    gradients: Gradients, params: Params, state: LikelihoodState, x: Tensor, y: Tensor
) -> None:
    x, y = x[:SAMPLES], y[:SAMPLES]
    first = {name: value[:1] for name, value in params.items()}
    gradients.prepare(params, x)
    key = torch.zeros(1, 2, dtype=torch.int32, device=x.device)
    one = {name: value[:1] for name, value in state.items()}
    data_targets = copy.copy(gradients)
    data_targets.targets = "data"  # drawn labels would be another sum
    measured = data_targets(
        first, one, (x, y), chain_axis=False, key=key, step=torch.zeros((), device=x.device)
    )

    def loss(p: Params, x_n: Tensor, y_n: Tensor) -> Tensor:
        learned = {name: value[0] for name, value in measured.likelihood.items()}
        outputs = gradients.network.call(p, x_n)
        return gradients.likelihood.log_loss(outputs, y_n, learned).sum()

    plain = {name: value[0] for name, value in first.items()}
    expected = {name: torch.zeros_like(value) for name, value in plain.items()}
    for n in range(len(x)):
        sample = grad(loss)(plain, x[n : n + 1], y[n : n + 1])
        for name, g in sample.items():
            expected[name] += g.square() / len(x)
    for name, reference in expected.items():
        error = (measured.statistics.second[name][0] - reference).norm()
        if not error <= TOLERANCE * reference.norm() + 1e-12:
            raise ValueError(
                f"the Fisher statistics of {name!r} do not match its per-sample gradients "
                f"(relative error {float(error / (reference.norm() + 1e-30)):.2g}): is the weight "
                "tied or used outside its own layer, or is the batch not the first axis? Use "
                "preconditioners.RMSProp() or Euclidean() for this network"
            )
