"""``python -m natural_langevin``: the command ``natural-langevin``."""

from natural_langevin.cli import main

if __name__ == "__main__":
    main()
