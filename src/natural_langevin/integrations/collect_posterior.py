"""Common base of the callbacks: a collector that starts with the training."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch

from natural_langevin.optim import Collector, NaturalLangevin
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.run.kept_draws import check_kept
from natural_langevin.run.loop import DivergenceError

log = logging.getLogger("natural_langevin")


class PosteriorCallback:
    """Keeps iterates burn_in + thin, burn_in + 2 thin, ... of the training's optimizer.

    Iterate k is the parameter after k updates, whatever the accumulation of gradients. ``keep``,
    ``store`` and ``sample_dtype`` are those of ``optim.Collector``.
    """

    def __init__(
        self,
        *,
        burn_in: int = 0,
        thin: int = 1,
        keep: int | None = None,
        store: str = "cpu",
        sample_dtype: torch.dtype | None = None,
    ) -> None:
        check_kept(burn_in, thin)
        self._options: dict[str, Any] = {
            "burn_in": burn_in,
            "thin": thin,
            "keep": keep,
            "store": store,
            "sample_dtype": sample_dtype,
        }
        self._collector: Collector | None = None
        self._pending: dict[str, Any] | None = None

    @property
    def kept(self) -> list[int]:
        """Which iterates are held."""
        return [] if self._collector is None else self._collector.kept

    @property
    def posterior(self) -> Posterior:
        """Everything kept so far, as a ``Posterior`` of one chain."""
        if self._collector is None:
            raise ValueError(
                "nothing has been collected: give this callback to the trainer (callbacks=[...]) "
                "and train first"
            )
        return self._collector.posterior()

    def begin(self, optimizers: Iterable[object]) -> NaturalLangevin:
        """Listens to the one NaturalLangevin among the trainer's optimizers from now on."""
        given = [_bare(one) for one in optimizers]
        found = [one for one in given if isinstance(one, NaturalLangevin)]
        if len(found) != 1:
            names = ", ".join(type(one).__name__ for one in given) or "none"
            raise ValueError(
                f"CollectPosterior needs one natural_langevin.optim.NaturalLangevin among the "
                f"trainer's optimizers, got {len(found)} ({names}): use NaturalLangevin, or for "
                "several of them optimizer.collector(...) of each"
            )
        (optimizer,) = found
        if self._collector is not None:
            if self._collector.kept:
                log.warning(
                    "a new training begins: the %d iterates kept from the last one are dropped. "
                    "Use a CollectPosterior for each, or take callback.posterior in between",
                    len(self._collector),
                )
            self._collector.close()
        self._collector = optimizer.collector(**self._options)
        if self._pending is not None:
            self._collector.load_state_dict(self._pending)
            self._pending = None
        return optimizer

    def log_divergence(self, error: BaseException) -> None:
        """Says what is left when the chain has run away; the error itself says what to do."""
        if isinstance(error, DivergenceError):
            kept = self.kept
            log.error(
                "the chain has diverged: %s. %d iterates were kept before%s",
                error,
                len(kept),
                f", the last after step {kept[-1]}; callback.posterior has them" if kept else "",
            )


def _bare(optimizer: object) -> object:
    """Without the wrappers of Lightning and Accelerate."""
    inner = getattr(optimizer, "optimizer", None)
    return _bare(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer
