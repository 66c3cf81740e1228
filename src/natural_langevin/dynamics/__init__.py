"""Dynamics: how a state moves by one step, one integrator per file.

Imports priors, likelihoods, statistics and preconditioners; execution and up import it.
"""

from natural_langevin.dynamics.adjusted import Adjusted
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.descent import Descent
from natural_langevin.dynamics.frame import Integrator, LangevinDynamics
from natural_langevin.dynamics.microcanonical import Microcanonical
from natural_langevin.dynamics.nose_hoover import NoseHoover
from natural_langevin.dynamics.overdamped import Overdamped
from natural_langevin.dynamics.rates import Kind, Rates, RatesTable
from natural_langevin.dynamics.underdamped import Underdamped

#: What ``Langevin(dynamics=...)`` takes, by name: the one list that tests read.
REGISTRY: dict[str, type[Integrator]] = {
    "overdamped": Overdamped,
    "underdamped": Underdamped,
    "nose-hoover": NoseHoover,
    "adjusted": Adjusted,
    "microcanonical": Microcanonical,
}

__all__ = [
    "REGISTRY",
    "Adjusted",
    "Descent",
    "Info",
    "Integrator",
    "Kind",
    "LangevinDynamics",
    "Microcanonical",
    "NoseHoover",
    "Overdamped",
    "Rates",
    "RatesTable",
    "State",
    "Underdamped",
]
