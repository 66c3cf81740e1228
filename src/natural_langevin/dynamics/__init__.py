"""Dynamics: how a state moves by one step, one integrator per file.

Imports statistics, preconditioners and priors; execution and sampling import it.
"""

from natural_langevin.dynamics.overdamped import Dynamics, Info, Rates, State

__all__ = ["Dynamics", "Info", "Rates", "State"]
