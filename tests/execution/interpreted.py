"""Runs the Triton kernel in Triton's interpreter, on the CPU, against the general step."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    sys.path.insert(0, str(Path(__file__).parent))

    from test_fused_step import (
        METRICS,
        MOMENTUM,
        WITH_BIAS,
        WITHOUT_BIAS,
        assert_same_steps,
        network,
        sampler,
    )

    from natural_langevin.dynamics import Underdamped
    from natural_langevin.execution.kernels import triton_linear
    from natural_langevin.execution.kernels.layer import Backend

    backend = Backend("triton", triton_linear.update_, triton_linear.arrange)
    # Layers of 17 units and 20 inputs: with a bias, inputs in two tiles; without, units; with
    # momentum, both. A batch of 18 in two blocks, where sums go on in a second one, and in one.
    every = "all" in sys.argv  # without: what is not in the kernel of another case
    for bias, tile in ((True, (32, 16, 16)), (False, (16, 32, 32))):
        triton_linear.TILE, samples = tile, tile[2]
        for name in METRICS if every else WITH_BIAS if bias else WITHOUT_BIAS:
            one = sampler(network(bias=bias), METRICS[name], chains=2)
            assert_same_steps(one, backend, steps=3, expected=["0", "2"])
            print(f"{name}, bias {bias}, blocks of {samples}: agrees")
    triton_linear.TILE = (16, 16, 32)
    for kind in MOMENTUM if every else MOMENTUM[:1]:
        one = sampler(network(), METRICS[kind], chains=2, dynamics=Underdamped(friction=0.3))
        assert_same_steps(one, backend, steps=3, expected=["0", "2"])
        print(f"{kind} with momentum: agrees")


if __name__ == "__main__":  # not while tests are collected: every file is imported for its doctests
    main()
