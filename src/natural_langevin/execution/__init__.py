"""Execution: how steps are run, eagerly, compiled, as a CUDA graph or by hand-written kernels.

Imports data, likelihoods, priors, statistics, preconditioners and dynamics; diagnostics and up
import it.
"""

from natural_langevin import random
from natural_langevin.execution.kernels.cpu_sums import NativeSums
from natural_langevin.execution.kernels.native.build import native_normal
from natural_langevin.statistics import use_native_sums

random.use_native(native_normal)
use_native_sums(NativeSums())
