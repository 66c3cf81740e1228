"""Diagnostics of draws: R-hat and effective sample size, by ArviZ, and verdicts in words.

Weights of a network have many equivalent arrangements (permute the hidden units), so chains are
compared where it matters: in function space, by their predictions on probe inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

#: Above this R-hat, chains have not mixed (Vehtari et al. 2021).
RHAT_LIMIT = 1.01
#: Fewer effective draws than this per chain make R-hat itself unreliable.
ESS_LIMIT = 50.0


@dataclass(frozen=True)
class Diagnosis:
    """Summaries over probes: ``rhat`` and ``ess`` hold one value per predicted number."""

    chains: int
    draws: int
    rhat: np.ndarray[Any, np.dtype[np.float64]] | None  # None with fewer than two chains
    ess: np.ndarray[Any, np.dtype[np.float64]]  # summed over chains
    diverged: dict[int, int]  # chain -> step

    @property
    def verdicts(self) -> list[str]:
        """What was found and what to do about it, one sentence each; empty when all is well."""
        found = [
            f"Chain {chain} diverged at step {step}: use a smaller step size or more damping."
            for chain, step in self.diverged.items()
        ]
        if self.rhat is None:
            found.append("One chain cannot show whether it has converged: run at least two.")
        elif float(np.quantile(self.rhat, 0.95)) > RHAT_LIMIT:
            found.append(
                f"The chains disagree (R-hat {np.median(self.rhat):.3f} in the median and up to "
                f"{self.rhat.max():.3f}, where {RHAT_LIMIT} is the limit): "
                "run longer, raise burn_in, or pool more chains and treat them as an ensemble."
            )
        if float(np.median(self.ess)) < ESS_LIMIT * self.chains:
            found.append(
                f"The draws are strongly correlated (median effective sample size "
                f"{np.median(self.ess):.0f} of {self.chains * self.draws}): run longer, or use "
                "a larger step size or a Fisher preconditioner."
            )
        return found

    def __str__(self) -> str:
        rhat = (
            "not available"
            if self.rhat is None
            else (f"median {np.median(self.rhat):.3f}, largest {self.rhat.max():.3f}")
        )
        head = (
            f"{self.chains} chains of {self.draws} draws. R-hat: {rhat}. Effective sample size: "
            f"median {np.median(self.ess):.0f} of {self.chains * self.draws}."
        )
        return "\n".join([head, *(self.verdicts or ["Nothing suspicious was found."])])


def diagnose(predictions: Tensor, diverged: dict[int, int]) -> Diagnosis:
    """From predictions of the healthy chains on probe inputs: (chain, draw, ...)."""
    chains, draws = predictions.shape[:2]
    if draws < 4:
        raise ValueError(f"diagnosing needs at least 4 draws per chain, got {draws}: lower thin")
    arviz = import_arviz()
    values = predictions.double().cpu().reshape(chains, draws, -1).numpy()
    moving = values.std(axis=(0, 1)) > 0  # a constant has no autocorrelation
    columns = [values[:, :, k] for k in np.flatnonzero(moving)]
    if not columns:
        raise ValueError("every draw predicts exactly the same: is the temperature 0?")
    rhat = np.array([float(arviz.rhat(c)) for c in columns]) if chains > 1 else None
    ess = np.array([float(arviz.ess(c)) for c in columns])
    return Diagnosis(chains, draws, rhat, ess, diverged)


def import_arviz() -> Any:
    try:
        import arviz
    except ImportError as error:
        raise ImportError(
            "this needs ArviZ: pip install 'natural-langevin[diagnostics]'"
        ) from error
    return arviz
