"""One run on several processes, started by ``torchrun``.

Imports everything below it; problem and up import it.
"""

from natural_langevin.distributed.group import Group, GroupError
from natural_langevin.distributed.join import join, launched
from natural_langevin.distributed.layout import Layout

__all__ = ["Group", "GroupError", "Layout", "join", "launched"]
