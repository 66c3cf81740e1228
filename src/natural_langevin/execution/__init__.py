"""Execution: how steps are run, eagerly, compiled, as a CUDA graph or by kernels of our own.

Imports dynamics; sampling and experiments import it.
"""
