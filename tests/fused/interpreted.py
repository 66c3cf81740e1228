"""Runs the Triton kernel in Triton's interpreter, on the CPU, against the general step."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_fused_step import METRICS, assert_same_steps, network, sampler

from natural_langevin.fused import triton_linear
from natural_langevin.fused.layer import Backend

backend = Backend("triton", triton_linear.update_, triton_linear.arrange)
for samples in (32, 16):  # a batch of 18 in one block, and in two
    triton_linear.TILE = (16, 16, samples)
    for name, metric in METRICS.items():
        for bias in (True, False):
            one = sampler(network(bias=bias), metric)
            assert_same_steps(one, backend, steps=2, expected=["0", "2"])
            print(f"{name}, bias {bias}, blocks of {samples}: agrees")
