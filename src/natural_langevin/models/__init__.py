"""Networks of the experiments: the paper's perceptron, and HMC's residual network.

Imports nothing but tools; statistics and up import it.
"""

from natural_langevin.models.perceptron import fan_in_init, mlp
from natural_langevin.models.residual import FilterResponseNorm, resnet_frn

__all__ = ["FilterResponseNorm", "fan_in_init", "mlp", "resnet_frn"]
