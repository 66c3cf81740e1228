"""Correlated weights of one unit, such as those of neighbouring pixels."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import per_chain
from natural_langevin.priors.base import Prior, check_number_or_vector


@dataclass(frozen=True)
class Correlated(Prior):
    """Every output unit's incoming weights w ~ N(0, variance K), units independent: for a tensor
    (out, in, ...), ``covariance`` K is over its in x ... inputs, flattened.

    ln alpha = sum over units of -w^T K^-1 w / (2 variance) - ln det(2 pi variance K) / 2.

    The same network, and often a better conditioned one, is a ``Gaussian(variance)`` on the weights
    behind inputs that were mapped beforehand: w = L u with K = L L^T (``factor``), so that
    w . x = u . (x L).

    >>> both = torch.tensor([[1.0, 0.9], [0.9, 1.0]]) # two inputs of similar weight
    >>> Correlated(1.0, both).log_density(torch.tensor([[[1.0, 1.0]], [[1.0, -1.0]]])).argmax()
    tensor(0)
    """

    variance: float | Tensor
    covariance: Tensor
    dtype: torch.dtype = torch.float64
    factor: Tensor = field(init=False, compare=False)
    _inverse: Tensor = field(init=False, compare=False)
    _log_det: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        check_number_or_vector("variance", self.variance, positive=True)
        k = torch.as_tensor(self.covariance).double()
        if k.ndim != 2 or k.shape[0] != k.shape[1] or not torch.allclose(k, k.mT):
            raise ValueError(
                f"covariance must be a symmetric matrix over a unit's inputs, got {tuple(k.shape)}"
            )
        factor, failed = torch.linalg.cholesky_ex(k)
        if int(failed) or not k.isfinite().all():
            raise ValueError(
                "covariance must be positive definite: add a small multiple of the identity"
            )
        object.__setattr__(self, "covariance", k)
        object.__setattr__(self, "_log_det", 2 * float(factor.diagonal().log().sum()))
        object.__setattr__(self, "factor", factor.to(self.dtype))
        object.__setattr__(self, "_inverse", torch.cholesky_inverse(factor).to(self.dtype))

    def __repr__(self) -> str:
        digest = hashlib.sha256(self.covariance.cpu().numpy().tobytes()).hexdigest()[:12]
        size = len(self.covariance)
        return f"Correlated(variance={self.variance!r}, covariance={size}x{size} {digest})"

    def for_tensor(self, parameter: Tensor | None) -> Prior:
        if parameter is None:
            return self
        inputs = math.prod(parameter.shape[1:])
        if parameter.ndim < 2 or inputs != len(self.covariance):
            raise ValueError(
                f"a covariance over {len(self.covariance)} inputs does not fit a tensor of shape "
                f"{tuple(parameter.shape)}, with {inputs} inputs: name the tensor that it is for, "
                'such as {"0.weight": priors.Correlated(...), "*": ...}'
            )
        moved = self.covariance.to(parameter.device)
        return Correlated(self.variance, moved, parameter.dtype)

    def _units(self, theta: Tensor) -> Tensor:
        """(chain, *shape) -> (chain, out, in)."""
        return theta.reshape(len(theta), -1, len(self.covariance))

    def log_density(self, theta: Tensor) -> Tensor:
        w = self._units(theta)
        squares = (w * (w @ self._inverse.to(theta))).sum((1, 2))
        variance = per_chain(self.variance, squares)
        dimension = len(self.covariance)
        constant = dimension * torch.log(2 * math.pi * variance) + self._log_det
        return -0.5 * (squares / variance + w.shape[1] * constant)

    def gradient(self, theta: Tensor) -> Tensor:
        pull = (self._units(theta) @ self._inverse.to(theta)).reshape(theta.shape)
        return -pull / per_chain(self.variance, theta)

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        z = random.normal(key, math.prod(shape)).to(dtype).reshape(-1, *shape)
        w = (self._units(z) @ self.factor.to(z).mT).reshape(z.shape)
        return per_chain(self.variance, z).sqrt() * w

    @property
    def precision(self) -> float | Tensor:
        """The mean of K^-1's diagonal over the variance: the average of the inputs' curvatures."""
        return float(self._inverse.double().diagonal().mean()) / self.variance

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"variance": self.variance}


def blur_pixels(height: int, width: int, length: float, *, rough: float = 0.1) -> Tensor:
    """M = rough Id + (1 - rough) G, (height width, height width), with G the Gaussian blur of an
    image, whose rows, exp(-distance^2 / (2 length^2)), sum to 1.

    Images mapped beforehand, x M, with a ``Gaussian(variance)`` on the first layer's weights are
    the prior N(0, variance M M^T) on the weights behind the pixels themselves.

    >>> blur_pixels(3, 3, 1.0).sum(1).allclose(torch.ones(9).double())
    True
    """
    if min(height, width) < 1 or not length > 0 or not 0 < rough <= 1:
        raise ValueError(
            f"pixels need positive sizes and length, and 0 < rough <= 1, got "
            f"{height} x {width}, length {length!r}, rough {rough!r}"
        )
    rows, columns = torch.arange(height).double(), torch.arange(width).double()
    place = torch.cartesian_prod(rows, columns).reshape(-1, 2)
    blur = torch.exp(-torch.cdist(place, place).square() / (2 * length**2))
    blur = blur / blur.sum(1, keepdim=True)
    return rough * torch.eye(len(place), dtype=torch.float64) + (1 - rough) * blur


def smooth_pixels(height: int, width: int, length: float, *, rough: float = 0.1) -> Tensor:
    """Correlations of the weights behind an image's pixels, (height width, height width), for
    ``Correlated``: smooth over about ``length`` pixels, with a part ``rough`` that is not.

    K = D M M^T D with M of ``blur_pixels``, and D diagonal so that every K_ii = 1.

    >>> k = smooth_pixels(4, 4, 1.0)
    >>> bool(k[0, 1] > k[0, 2] > k[0, 15])
    True
    """
    mixed = blur_pixels(height, width, length, rough=rough)
    k = mixed @ mixed.mT
    size = k.diagonal().rsqrt()
    return size[:, None] * (k + k.mT) / 2 * size
