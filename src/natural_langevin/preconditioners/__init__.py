"""Preconditioners: one file per metric. ``REGISTRY`` is the one list that tests read.

Imports priors and statistics; dynamics and up import it.
"""

from natural_langevin.preconditioners.base import (
    Damping,
    Factor,
    Metric,
    Preconditioner,
    resolve_damping,
)
from natural_langevin.preconditioners.diagonal import DiagonalFisher
from natural_langevin.preconditioners.eigen_kronecker import EigenKroneckerFisher
from natural_langevin.preconditioners.euclidean import Euclidean
from natural_langevin.preconditioners.full import FullFisher
from natural_langevin.preconditioners.kronecker import KroneckerFisher
from natural_langevin.preconditioners.quasi_diagonal import QuasiDiagonalFisher
from natural_langevin.preconditioners.rmsprop import RMSProp
from natural_langevin.preconditioners.unit import UnitFisher

#: By name; the paper has all but the unit-wise and the Kronecker-factored ones.
REGISTRY: dict[str, type[Preconditioner]] = {
    "euclidean": Euclidean,
    "rmsprop": RMSProp,
    "diagonal": DiagonalFisher,
    "quasi-diagonal": QuasiDiagonalFisher,
    "unit": UnitFisher,
    "kronecker": KroneckerFisher,
    "eigen-kronecker": EigenKroneckerFisher,
    "full": FullFisher,
}

__all__ = [
    "REGISTRY",
    "Damping",
    "DiagonalFisher",
    "EigenKroneckerFisher",
    "Euclidean",
    "Factor",
    "FullFisher",
    "KroneckerFisher",
    "Metric",
    "Preconditioner",
    "QuasiDiagonalFisher",
    "RMSProp",
    "UnitFisher",
    "resolve_damping",
]
