"""Fused steps: linear layers whose gradient, statistics and update are formed in one place.

Imports data, likelihoods, priors, statistics, preconditioners and dynamics; posterior and up import
it.

``step.FusedStep`` is the step, ``layer`` says what a backend is given, and a backend is one file:
``triton_linear`` on CUDA (its kernels in ``triton_linear_kernels``), ``cpu_linear`` on the CPU, by
the native engine's own update (``native/linear.h``). ``triton_step`` and ``triton_perceptron`` are
what a step does beside its layers' updates on CUDA. If there is none, or no layer qualifies, the
general step is used.
"""

from __future__ import annotations

import logging
from functools import cache

import torch

from natural_langevin._internal import gpu_build
from natural_langevin._internal.messages import first_line
from natural_langevin.execution.kernels.layer import Backend, LayerTask
from natural_langevin.execution.kernels.native import build
from natural_langevin.execution.kernels.step import FusedStep, plan

__all__ = ["Backend", "FusedStep", "LayerTask", "backend_for", "plan"]

log = logging.getLogger("natural_langevin")


def backend_for(device: torch.device) -> Backend | None:
    """The backend of this device; None where there is none. Triton's kernels are tried out by
    every run (``Engine``)."""
    if device.type == "cpu" and build.library(torch.float32) is None:  # as the log was told
        return None
    return _backend(device)


@cache
def _backend(device: torch.device) -> Backend | None:
    try:
        if device.type == "cuda":
            gpu_build.wait(device)
            from natural_langevin.execution.kernels import triton_linear as own
            from natural_langevin.execution.kernels.triton_perceptron import perceptron
            from natural_langevin.execution.kernels.triton_step import Bookkeeping, build_all

            return Backend(
                "triton", own.update_, own.arrange, True, Bookkeeping, build_all, perceptron
            )
        if device.type == "cpu":
            from natural_langevin.execution.kernels import cpu_linear

            return Backend("native", cpu_linear.update_, cpu_linear.arrange)
    except Exception as error:  # no Triton, no compiler, or a driver they cannot work with
        log.warning("no fused kernels (%s): using the general step", first_line(error))
    return None
