"""Execution: how steps are run, eagerly, compiled, as a CUDA graph or by kernels of our own.

Imports data, likelihoods, priors, statistics, preconditioners and dynamics; diagnostics and up
import it.
"""
