"""Data: datasets found, verified and split, and the batch streams that feed the sampler.

Imports nothing but tools; statistics and up import it.
"""

from natural_langevin.data.dataset import Dataset, digits
from natural_langevin.data.errors import CorruptDataError, DataError, DataUnavailableError
from natural_langevin.data.images import NAMES, fashion_mnist, load, mnist
from natural_langevin.data.loaders import SharedBatches
from natural_langevin.data.streams import Subsets, SymmetricSweeps

__all__ = [
    "NAMES",
    "CorruptDataError",
    "DataError",
    "DataUnavailableError",
    "Dataset",
    "SharedBatches",
    "Subsets",
    "SymmetricSweeps",
    "digits",
    "fashion_mnist",
    "load",
    "mnist",
]
