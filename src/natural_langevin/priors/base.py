"""``Prior``: the interface that the dynamics use.

Every function works on one parameter tensor with a leading chain axis, (chain, *shape), and
treats chains independently. The 1/N that puts the prior on the scale of the mean loss is applied
by the dynamics, never here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal.light_autograd import grad


class Prior:
    """One parameter tensor's prior. Subclasses are final."""

    def log_density(self, theta: Tensor) -> Tensor:
        """ln alpha(theta), up to a constant for improper priors: shape (chain,)."""
        raise NotImplementedError

    def gradient(self, theta: Tensor) -> Tensor:
        """d ln alpha / d theta: the shape of ``theta``. By default the derivative of
        ``log_density``."""
        found: Tensor = grad(lambda t: self.log_density(t).sum())(theta)
        return found

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A draw for every chain from the streams ``key`` (chain, 2): shape (chain, *shape)."""
        raise NotImplementedError(
            f"{type(self).__name__} has no draws: define sample(key, shape, dtype), or start "
            'elsewhere than at init="prior"'
        )

    @property
    def precision(self) -> float | Tensor:
        """The curvature -E[d^2 ln alpha / d theta_i^2] of one weight, averaged under the prior:
        a number, or one value per chain. 1 / variance for a Gaussian, 0 for a flat prior.

        Divided by N it is the prior's share of the posterior's curvature (``damping="prior"``).
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no precision: define this property, the curvature of "
            "-log_density in one weight, on average; 1 / variance is of the right size"
        )

    @property
    def precisions(self) -> Tensor | None:
        """Of a Gaussian about 0 with a variance of its own for every weight: their inverses,
        (chain, *shape). Kernels read them. None for all others."""
        return None

    def for_tensor(self, parameter: Tensor | None) -> Prior:
        """This prior for a tensor like ``parameter`` (None: not known): itself, unless it depends
        on a tensor's shape."""
        return self

    def chain_values(self) -> dict[str, float | Tensor]:
        """The settings that may hold one value per chain, by name; for validation. ``mean`` may
        also hold one per weight: (*shape), or (chain, *shape), where the first axis may be 1."""
        return {}


def check_number_or_vector(name: str, value: float | Tensor, *, positive: bool) -> None:
    """Refuses values other than a finite number or one finite (positive) value per chain."""
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if tensor.ndim > 1:
        raise ValueError(
            f"{name} must be a number or one value per chain, got shape {tuple(tensor.shape)}"
        )
    if not torch.isfinite(tensor).all() or (positive and not (tensor > 0).all()):
        kind = "positive and finite" if positive else "finite"
        raise ValueError(f"{name} must be {kind}, got {value!r}")


def check_mean(prior: Prior, mean: Any) -> None:
    """Refuses means that are not finite; a list or an array becomes a tensor. ``resolve`` checks
    its shape."""
    if not isinstance(mean, (int, float, Tensor)):
        mean = torch.as_tensor(mean)
        object.__setattr__(prior, "mean", mean)
    if not torch.as_tensor(mean, dtype=torch.float64).isfinite().all():
        raise ValueError(f"mean must be finite, got {mean!r}")
