"""``Posterior``: samples of a network's weights, and their predictions.

Imports data, likelihoods, priors, statistics, execution, metrics and diagnostics; distributed and
up import it.
"""

from natural_langevin.posterior.posterior import Posterior
from natural_langevin.posterior.prediction import Prediction

__all__ = ["Posterior", "Prediction"]
