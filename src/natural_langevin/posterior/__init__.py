"""Posterior: samples of a network's weights, and what can be asked of them.

Imports likelihoods, metrics and diagnostics; sampling and everything above it import it.
"""

from natural_langevin.posterior.posterior import Posterior
from natural_langevin.posterior.prediction import Prediction

__all__ = ["Posterior", "Prediction"]
