"""Helper modules of this folder on the path.

A launch belongs to one file of tests: files may run in processes of their own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
