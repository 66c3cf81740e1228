"""What a step costs, against plain SGD and other people's SGLD on the same machine.

Imports everything below experiments; cli imports it.

``natural-langevin bench`` runs it. It needs no more than torch and numpy itself; peers that are not
installed are listed as such.
"""

from natural_langevin.experiments.speed.run import run
from natural_langevin.experiments.speed.settings import SECTIONS, BenchError, Settings

__all__ = ["SECTIONS", "BenchError", "Settings", "run"]
