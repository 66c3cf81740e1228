"""Learning coefficients and marginal likelihoods where the truth is known.

``python -m lab.slt.deep_linear``, ``lab.slt.rescaled``, ``lab.slt.evidence``, ``lab.slt.width``,
``lab.slt.heat``, ``lab.slt.peers``, ``lab.slt.gpu``.
"""
