"""Singular learning theory: local learning coefficients of trained networks, WBIC, influences.

    lambda = n beta (E[L_n(w)] - L_n(w*)),    w ~ exp(-n beta L_n(w)) N(w; w*, variance),

beta = 1 / ln n (Watanabe 2013; Lau et al. 2023): a run of ``Langevin`` with a prior around w* and a
power of the likelihood. ``llc`` is of one network, ``llc_curve`` of many, as chains of one run.

Imports everything below it; evidence and cli import it.
"""

from natural_langevin.slt.curve import Curve, llc_curve
from natural_langevin.slt.estimate import LearningCoefficient
from natural_langevin.slt.influence import influence
from natural_langevin.slt.llc import llc, localised
from natural_langevin.slt.wbic import FreeEnergy, wbic

__all__ = [
    "Curve",
    "FreeEnergy",
    "LearningCoefficient",
    "influence",
    "llc",
    "llc_curve",
    "localised",
    "wbic",
]
