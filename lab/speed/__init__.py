"""What a step costs, against plain SGD and other people's SGLD on the same machine.

``python -m lab.speed`` runs it: steps, memory, growth, latency and samples, with peers, on all
networks (``natural-langevin bench`` measures steps of a perceptron alone). It needs no more than
torch and numpy itself; peers that are not installed are listed as such.
"""

from lab.speed.run import run
from lab.speed.settings import SECTIONS, BenchError, Settings

__all__ = ["SECTIONS", "BenchError", "Settings", "run"]
