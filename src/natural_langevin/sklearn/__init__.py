"""scikit-learn estimators: Bayesian neural networks with ``fit`` and ``predict_proba``, without
tuning.

Imports tabular and what it needs from below; nothing imports it.

* ``NaturalLangevinClassifier``, ``NaturalLangevinRegressor``: see ``base``
"""

from natural_langevin._internal.extras import needing

with needing("the estimators need scikit-learn", "sklearn"):
    import sklearn  # noqa: F401 (the real one: imports are absolute)

from natural_langevin.sklearn.classifier import NaturalLangevinClassifier
from natural_langevin.sklearn.regressor import NaturalLangevinRegressor

__all__ = ["NaturalLangevinClassifier", "NaturalLangevinRegressor"]
