"""Runs the Triton kernel in Triton's interpreter, on the CPU, against the general step."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

#: Metrics of whole runs; of the first a few seconds of the interpreter see all kernels.
RUNS = ("quasi-diagonal", "rmsprop", "quasi-diagonal, model", "euclidean", "diagonal")


def main() -> None:
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

    from triton_interpreter import start

    if not start():  # before a kernel is imported
        return

    import torch
    from test_fused_step import (
        MOMENTUM,
        SCHEMES,
        WITH_BIAS,
        WITHOUT_BIAS,
        assert_same_steps,
        network,
        sampler,
        wide_network,
    )

    from fused_runs import METRICS, assert_same_perceptrons, assert_same_runs
    from natural_langevin import likelihoods, random
    from natural_langevin._internal import triton_categorical, triton_random
    from natural_langevin.dynamics import Underdamped
    from natural_langevin.execution.kernels import (
        triton_linear,
        triton_linear_kernels,
        triton_perceptron,
    )
    from natural_langevin.execution.kernels.layer import Backend
    from natural_langevin.execution.kernels.triton_step import Bookkeeping

    origin, step = random.origin(3, random.NOISE, torch.arange(3)), torch.tensor(70_000)
    key = random.stream(origin, step)
    assert torch.equal(triton_random.stream(origin, step), key)
    made = triton_random.normal(key, 1100, 64)
    torch.testing.assert_close(made, random.normal(key, 1100, start=64), rtol=1e-5, atol=5e-6)
    print("keys and normals: agrees")
    logits, labels = torch.linspace(-9, 40, 51).reshape(17, 3), torch.arange(17) % 3
    pair = triton_categorical.loss_and_gradient(logits, labels)
    expected = likelihoods.Categorical().output_gradient(logits, labels, {})
    torch.testing.assert_close(pair, expected, rtol=1e-5, atol=1e-6)
    print("losses of classes: agrees")

    small = torch.full((1,), 1e-9)  # a gradient's square, where averages begin at 1
    assert torch.equal(triton_linear_kernels.mix.fn(torch.ones(1), small, 1.0), small)
    print("averages forget where they began: agrees")

    backend = Backend("triton", triton_linear.update_, triton_linear.arrange)
    # Layers of 17 units and 20 inputs: with a bias, inputs in two tiles; without, units; with
    # momentum, both. A batch of 18 in two blocks, where sums go on in a second one, and in one.
    every = "all" in sys.argv  # without: what is not in the kernel of another case
    for bias, tile in ((True, (32, 16, 16)), (False, (16, 32, 32))):
        triton_linear.TILE, samples = triton_linear.Tile(*tile), tile[2]
        for name in METRICS if every else WITH_BIAS if bias else WITHOUT_BIAS:
            one = sampler(network(bias=bias), METRICS[name], chains=2)
            assert_same_steps(one, backend, steps=3 if every else 2, expected=["0", "2"])
            print(f"{name}, bias {bias}, blocks of {samples}: agrees")
    triton_linear.TILE = triton_linear.Tile(16, 32, 32)
    for name in ("quasi-diagonal", "diagonal, every second step")[: 1 + every]:
        one = sampler(wide_network(), METRICS[name], chains=2)
        assert_same_steps(one, backend, steps=3 if every else 2, expected=["0", "2", "4"])
        print(f"{name}, rows of whole and half blocks of noise: agrees")
    triton_linear.TILE = triton_linear.Tile(16, 16, 32)
    for kind, scheme in itertools.product(MOMENTUM if every else MOMENTUM[:1], SCHEMES):
        one = sampler(network(), METRICS[kind], chains=2, dynamics=Underdamped(0.3, scheme))
        assert_same_steps(one, backend, steps=3 if every else 2, expected=["0", "2"])
        print(f"{kind} with momentum, {scheme}: agrees")
    whole = Backend("triton", triton_linear.update_, triton_linear.arrange, True, Bookkeeping)
    for kind in RUNS if every else RUNS[:1]:
        assert_same_runs(kind, whole, steps=4 if every else 3)
        print(f"{kind}, whole runs: agrees")
    triton_linear.TILE = triton_linear.Tile(16, 16, 32)
    for memory in (30_000, math.inf)[: 1 + every]:  # little: sums over inputs in several parts
        triton_perceptron.shared_memory = lambda device, memory=memory: memory
        kernels = whole._replace(network=triton_perceptron.perceptron)
        assert_same_perceptrons(kernels, steps=3 if every else 2)
        print(f"passes of perceptrons in {memory} bytes: agrees")


if __name__ == "__main__":  # not while tests are collected: every file is imported for its doctests
    main()
