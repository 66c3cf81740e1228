"""Marginal likelihoods: how well a model with its prior explains the data, without held-out rows.

    ln Z = ln integral alpha(w) prod_n p(y_n | x_n, w) dw = integral_0^1 E_beta[ln p(D | w)] d beta,

with w ~ alpha p^beta: the powers are chains of one run of ``Langevin`` with replica exchange.

Imports everything below it; cli imports it.
"""

from natural_langevin.evidence.marginal import (
    Comparison,
    Evidence,
    compare,
    log_marginal_likelihood,
)

__all__ = ["Comparison", "Evidence", "compare", "log_marginal_likelihood"]
