"""Whole steps of small multilayer perceptrons on a GPU: a Triton program per chain, many per launch.

Imports data, likelihoods, preconditioners, dynamics and the layer kernels' descriptions; executors
import it. ``kernel`` takes the steps, from the pieces in ``network`` and ``update``; ``executor``
hands a run over to it, and ``planner`` says which runs, after a comparison with the reference.
"""
