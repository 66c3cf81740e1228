"""The problem: network, likelihood, prior, temperature and data, checked once and frozen.

Imports everything below it; run and up import it.
"""

from natural_langevin.run.problem.problem import ChainSet, Problem

__all__ = ["ChainSet", "Problem"]
