"""Fused steps: linear layers whose gradient, statistics and update are formed in one place.

``step.FusedStep`` is the step, ``layer`` says what a backend is given, and a backend is one file:
``triton_linear`` on CUDA. Where there is none, or no layer qualifies, the general path serves.
"""

from __future__ import annotations

import logging
from functools import cache

import torch

from natural_langevin.fused.layer import Backend, LayerTask
from natural_langevin.fused.step import FusedStep, plan

__all__ = ["Backend", "FusedStep", "LayerTask", "backend_for", "plan"]

log = logging.getLogger("natural_langevin")


@cache
def backend_for(device: torch.device) -> Backend | None:
    """The backend of this device, tried out on a small layer; None where there is none."""
    if device.type != "cuda":
        return None
    try:
        from natural_langevin.fused import triton_linear

        triton_linear.try_out(device)
    except Exception as error:  # no Triton, or a driver or compiler it cannot work with
        log.warning("no fused kernels (%s): the general step serves", str(error).split("\n")[0])
        return None
    return Backend("triton", triton_linear.update_, triton_linear.arrange)
