"""BoTorch: a posterior as a model, whose acquisition functions are optimised by gradients.

model = PosteriorModel.fit(lambda x, y: sampler.sample((x, y)), train_x, train_y)
acquire = qLogExpectedImprovement(model, best_f=train_y.max())
candidate, _ = optimize_acqf(acquire, bounds, q=1, num_restarts=4, raw_samples=64)
model = model.condition_on_observations(candidate, f(candidate))   # samples again
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from natural_langevin._internal.extras import needing
from natural_langevin.posterior.posterior import Posterior

with needing("PosteriorModel needs the package botorch", "botorch"):
    from botorch.models.ensemble import EnsembleModel

#: What samples a posterior of targets (N, outputs) at inputs (N, features).
Sample = Callable[[Tensor, Tensor], Posterior]


class PosteriorModel(EnsembleModel):  # type: ignore[misc]
    """The networks of a posterior as an ensemble of functions: ``posterior(X)`` takes X of shape
    (*batch, q, features) and is differentiable in it. All q points of a draw are of one network, so
    joint acquisition functions (qLogEI, qNEI, ...) see how points vary together. The noise of the
    targets is no part of it.

    Args:
        posterior: Of a regression: the network's outputs are the function.
        most: How many networks are used at most; acquisition costs grow with it.
    """

    def __init__(self, posterior: Posterior, *, most: int = 256) -> None:
        super().__init__()
        if posterior.likelihood.discrete:
            raise ValueError(
                f"PosteriorModel needs a regression posterior, got {posterior.likelihood!r}"
            )
        self.sampled, self._most = posterior, most
        self._num_outputs = 1
        self._data: tuple[Tensor, Tensor] | None = None
        self._sample: Sample | None = None

    @classmethod
    def fit(cls, sample: Sample, x: Tensor, y: Tensor, *, most: int = 256) -> Self:
        """The model of ``sample(x, y)``, which can be conditioned on more data."""
        made = cls(sample(x, y), most=most)
        made._sample, made._data = sample, (x, y)
        made._num_outputs = y.shape[-1]
        return made

    def forward(self, X: Tensor) -> Tensor:  # noqa: N803 - BoTorch's name
        """Outputs (*batch, network, q, outputs) at X (*batch, q, features)."""
        dtype = next(iter(self.sampled.last.values())).dtype
        flat = X.reshape(-1, X.shape[-1]).to(dtype)
        found = self.sampled.network_outputs(flat, most=self._most).to(X)
        found = found.reshape(len(found), *X.shape[:-1], -1)
        return found.movedim(0, -3)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **_: Any) -> Self:  # noqa: N803
        """The model of all data with these, (n, features) and (n, outputs), by sampling again."""
        if self._sample is None or self._data is None:
            raise ValueError(
                "this model holds no data to add to: create it with PosteriorModel.fit(sample, "
                "x, y)"
            )
        x, y = self._data
        more = torch.cat([x, X.to(x)]), torch.cat([y, Y.reshape(-1, y.shape[-1]).to(y)])
        return type(self).fit(self._sample, *more, most=self._most)
