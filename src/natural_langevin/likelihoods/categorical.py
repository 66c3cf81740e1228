"""Classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, distributions

from natural_langevin import random
from natural_langevin._internal.gpu_kernels import Trial, tried, usable
from natural_langevin.likelihoods.base import Likelihood, State, check_labels, per_sample


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Classes 0 .. K-1 from logits: outputs (B, ..., K), targets integer (B, ...).

    -ln p = logsumexp(outputs) - outputs[y], summed over the positions of a sequence.

    ``class_weights`` (one per class) multiply the log-loss of a label: the target becomes
    alpha(theta) prod_n p(y_n | x_n)^w[y_n], the posterior of data in which every label of class k
    counts w_k times. Its probabilities refer to classes in *those* proportions, not in those of the
    data, and weights whose average is not 1 also change the effective number of data.

    ``ignore_index`` is a label that means "no label": such positions have a log-loss of 0, so that
    the target is the posterior given the other labels. Samples still count in N, as in the mean
    loss that they are part of.
    """

    class_weights: tuple[float, ...] | None = None
    ignore_index: int | None = None

    discrete = True
    link = "softmax"

    def __post_init__(self) -> None:
        if self.class_weights is None:
            return
        weights = tuple(float(w) for w in self.class_weights)
        if not all(math.isfinite(w) and w > 0 for w in weights):
            raise ValueError(f"class_weights must be positive and finite, got {weights}")
        object.__setattr__(self, "class_weights", weights)

    def distribution(self, outputs: Tensor, state: State) -> distributions.Categorical:
        return distributions.Categorical(logits=outputs, validate_args=False)

    def class_logits(self, outputs: Tensor) -> Tensor | None:
        usual = type(self).distribution is Categorical.distribution
        return outputs if usual else None

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        log_p, y = outputs.log_softmax(-1), y.long()
        there = None
        if self.ignore_index is not None:
            there = y != self.ignore_index
            y = y.where(there, 0)
        loss = -log_p.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        if self.class_weights is not None:
            loss = loss * loss.new_tensor(self.class_weights)[y]
        return per_sample(loss if there is None else loss.where(there, 0))

    def output_gradient(self, outputs: Tensor, y: Tensor, state: State) -> tuple[Tensor, Tensor]:
        simple = self.class_weights is None and self.ignore_index is None and outputs.ndim == 2
        if simple and outputs.dtype == torch.float32 and y.dtype == torch.int64 and usable(outputs):
            kernel = _tried_kernel(outputs.device)
            if kernel is not None and outputs.shape[1] <= kernel.MOST_CLASSES:
                return kernel.loss_and_gradient(outputs.contiguous(), y.contiguous())
        return super().output_gradient(outputs, y, state)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        return draw_classes(outputs.softmax(-1), key)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        if outputs.ndim < 2:
            raise ValueError(
                f"Categorical needs logits of shape (batch, classes), the model gives "
                f"{tuple(outputs.shape)}: end the network with nn.Linear(..., classes)"
            )
        classes = outputs.shape[-1]
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise ValueError(
                f"class_weights has {len(self.class_weights)} values for {classes} classes: "
                "give one for each"
            )
        if not y.dtype.is_floating_point and y.ndim != outputs.ndim - 1:
            raise ValueError(
                f"Categorical targets of shape {tuple(y.shape)} do not fit logits of shape "
                f"(batch, {', '.join(map(str, outputs.shape[1:]))}): give one class index each, "
                "y.argmax(-1) of one-hot targets, y.squeeze(-1) of a column"
            )
        channels_first = outputs.movedim(1, -1).shape
        if (
            y.ndim > 1
            and y.shape[1:] != outputs.shape[1:-1]
            and y.shape[1:] == channels_first[1:-1]
        ):
            raise ValueError(
                f"Categorical targets of shape {tuple(y.shape)} and logits of shape "
                f"(batch, {', '.join(map(str, outputs.shape[1:]))}): classes are the last axis "
                "here, not the second as in torch's cross_entropy. Let the network end with "
                "outputs.movedim(1, -1)"
            )
        check_labels("Categorical", y, classes, self.ignore_index)


@cache
def _tried_kernel(device: torch.device) -> Any:
    def trial() -> Trial:
        from natural_langevin._internal import triton_categorical as kernel

        f, y = torch.eye(3, device=device), torch.tensor([0, 0, 2], device=device)
        expected = Likelihood.output_gradient(Categorical(), f, y, {})
        return kernel, kernel.loss_and_gradient(f, y), expected

    return tried(device, "losses of classes", trial)


def draw_classes(probabilities: Tensor, key: Tensor) -> Tensor:
    """One class of each row of probabilities (..., K), from the stream ``key``: (...)."""
    cumulative = probabilities.cumsum(-1)
    u = random.uniform(key, cumulative[..., 0].numel()).reshape(cumulative[..., :1].shape)
    # Counting the classes below u; the last class catches what rounding leaves over.
    return (cumulative[..., :-1] < u).sum(-1)
