"""Data of the experiments: CIFAR-10, the UCI tables and HMC's predictions."""

from pathlib import Path

from lab.data.cifar import cifar10

#: Of the arrays that lie here, with a README each that says where they are from.
FOLDER = Path(__file__).parent

__all__ = ["FOLDER", "cifar10"]
