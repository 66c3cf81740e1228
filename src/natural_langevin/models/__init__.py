"""Networks: the paper's perceptron.

Imports nothing but tools; statistics and up import it.
"""

from natural_langevin.models.perceptron import fan_in_init, mlp

__all__ = ["fan_in_init", "mlp"]
