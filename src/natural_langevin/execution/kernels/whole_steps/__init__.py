"""Whole steps of small multilayer perceptrons on a GPU: a Triton program per chain, many a launch.

Imports data, likelihoods, preconditioners, dynamics and the layer kernels' descriptions; executors
import it. ``triton_kernel`` takes the steps, from the pieces in ``triton_network`` and
``triton_update``; ``executor`` hands a run over to it, and ``planner`` says which runs, after a
comparison with the reference.
"""
