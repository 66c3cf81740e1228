"""Preconditioners: one file per metric. ``REGISTRY`` is the one list that tests read.

Imports priors and statistics; dynamics and up import it.
"""

from natural_langevin.preconditioners.base import Damping, Factor, Metric, Preconditioner
from natural_langevin.preconditioners.damping import resolve_damping
from natural_langevin.preconditioners.diagonal import DiagonalFisher
from natural_langevin.preconditioners.euclidean import Euclidean
from natural_langevin.preconditioners.full import FullFisher
from natural_langevin.preconditioners.quasi_diagonal import QuasiDiagonalFisher
from natural_langevin.preconditioners.rmsprop import RMSProp

#: The paper's name of each metric (OP: outer product, targets from the data).
REGISTRY: dict[str, type[Preconditioner]] = {
    "euclidean": Euclidean,
    "rmsprop": RMSProp,
    "diagonal": DiagonalFisher,
    "quasi-diagonal": QuasiDiagonalFisher,
    "full": FullFisher,
}

__all__ = [
    "REGISTRY",
    "Damping",
    "DiagonalFisher",
    "Euclidean",
    "Factor",
    "FullFisher",
    "Metric",
    "Preconditioner",
    "QuasiDiagonalFisher",
    "RMSProp",
    "resolve_damping",
]
