"""``python -m natural_langevin.cli``."""

from natural_langevin.cli import main

main()
