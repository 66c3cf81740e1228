"""What a step costs, against plain SGD and other people's SGLD on the same machine.

Imports everything below experiments; cli imports it.

``python -m natural_langevin.experiments.speed`` and ``natural-langevin bench`` are the same
program; this one needs no more than torch and numpy. Peers that are not installed are
listed as such.
"""

from natural_langevin.experiments.speed.run import run
from natural_langevin.experiments.speed.settings import SECTIONS, BenchError, Settings

__all__ = ["SECTIONS", "BenchError", "Settings", "run"]
