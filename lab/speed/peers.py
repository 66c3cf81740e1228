"""Other people's SGLD in jax: jit, a scan over steps, vmap over chains.

Each is used the way its own documentation shows, on the same network, data, prior and batch size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.speed.contender import Layers, Ready, Unavailable
from lab.speed.plain import flat
from lab.speed.problems import Problem
from natural_langevin.cli.experiments.bench import PRIOR_VARIANCE, STEP_SIZE
from natural_langevin.cli.experiments.bench_networks import SIGMA

#: Steps in one call of the jitted scan.
SCAN = {"cpu": 10, "cuda": 100}


def missing(package: str) -> Unavailable:
    """The error for a package that is not installed, with the remedy."""
    return Unavailable("not installed", f"pip install 'natural-langevin[bench]' for {package}")


def blackjax_sgld(
    problem: Problem, chains: int, *, step_size: float = STEP_SIZE, start: Layers | None = None
) -> Ready:
    """``blackjax.sgld`` with its own gradient estimator."""
    return _of_blackjax("sgld", problem, chains, step_size / problem.num_data, start)


def blackjax_sghmc(
    problem: Problem, chains: int, *, step_size: float, start: Layers | None = None
) -> Ready:
    """``blackjax.sghmc`` as it comes: ten steps on one minibatch, friction 0.01, fresh momenta.
    ``step_size`` is its own."""
    return _of_blackjax("sghmc", problem, chains, step_size, start)


def _of_blackjax(
    name: str, problem: Problem, chains: int, rate: float, start: Layers | None
) -> Ready:
    jax = import_jax(problem)
    try:
        import blackjax
    except ImportError:
        raise missing("blackjax") from None
    prior, likelihood = log_densities(jax, problem)
    estimator = blackjax.sgmcmc.gradients.grad_estimator(prior, likelihood, problem.num_data)
    return scanned(jax, problem, chains, getattr(blackjax, name)(estimator).step, rate, start)


def jax_sgld(
    problem: Problem, chains: int, *, step_size: float = STEP_SIZE, start: Layers | None = None
) -> Ready:
    """The same step written by hand in jax."""
    jax = import_jax(problem)
    prior, likelihood = log_densities(jax, problem)

    def density(position: Any, batch: Any) -> Any:
        each = jax.vmap(likelihood, in_axes=(None, 0))(position, batch)
        return prior(position) + problem.num_data * each.mean()

    def step(key: Any, position: Any, batch: Any, rate: float) -> Any:
        gradient = jax.grad(density)(position, batch)
        leaves, tree = jax.tree.flatten(position)
        keys = jax.tree.unflatten(tree, list(jax.random.split(key, len(leaves))))
        return jax.tree.map(
            lambda p, g, k: p + rate * g + (2 * rate) ** 0.5 * jax.random.normal(k, p.shape),
            position, gradient, keys,
        )  # fmt: skip

    return scanned(jax, problem, chains, step, step_size / problem.num_data, start)


def import_jax(problem: Problem) -> Any:
    """jax, on the device of the problem; Unavailable where it is not there."""
    # Without this jax takes three quarters of the GPU's memory at its first use.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
    except ImportError:
        raise missing("jax") from None
    found = jax.default_backend()
    wanted = "gpu" if problem.device.type == "cuda" else "cpu"
    if found not in (wanted, problem.device.type):
        raise Unavailable("not installed", f"jax here runs on {found}, not on {wanted}")
    precision = torch.get_float32_matmul_precision()
    names = {"highest": "float32", "high": "tensorfloat32", "medium": "bfloat16"}
    jax.config.update("jax_default_matmul_precision", names[precision])
    return jax


def log_densities(jax: Any, problem: Problem) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """ln alpha(theta) and ln p(y | x) of one sample, for a ReLU network of (weight, bias) pairs."""

    def prior(position: Any) -> Any:
        return -sum((p**2).sum() for p in jax.tree.leaves(position)) / (2 * PRIOR_VARIANCE)

    def likelihood(position: Any, sample: Any) -> Any:
        h, y = sample
        for index, (weight, bias) in enumerate(position):
            h = weight @ h + bias
            if index < len(position) - 1:
                h = jax.nn.relu(h)
        if problem.regression:
            return -((h - y) ** 2).sum() / (2 * SIGMA**2)
        return jax.nn.log_softmax(h)[y]

    return prior, likelihood


def scanned(
    jax: Any,
    problem: Problem,
    chains: int,
    step: Callable[..., Any],
    rate: float,
    start: Layers | None,
) -> Ready:
    """Many steps in one jitted call, each with a fresh minibatch; vmapped where chains > 1.

    ``rate``: of a density that is a sum over all data."""
    x, y = (jax.numpy.asarray(t.cpu().numpy()) for t in (problem.x, problem.y))
    first = [jax.numpy.asarray(p.detach().cpu().numpy()) for p in problem.build().parameters()]
    initial = list(zip(first[::2], first[1::2], strict=True))
    count = SCAN[problem.device.type]

    def one_chain(key: Any, position: Any, x: Any, y: Any) -> Any:
        def body(position: Any, key: Any) -> Any:
            for_batch, for_noise = jax.random.split(key)
            index = jax.random.randint(for_batch, (problem.batch_size,), 0, problem.num_data)
            return step(for_noise, position, (x[index], y[index]), rate), None

        return jax.lax.scan(body, position, jax.random.split(key, count))[0]

    key = jax.random.key(problem.seed)
    function, state = one_chain, initial
    if chains > 1:
        function = jax.vmap(one_chain, in_axes=(0, 0, None, None))
        state = jax.tree.map(lambda p: jax.numpy.broadcast_to(p, (chains, *p.shape)) + 0, initial)
    if start is not None:
        state = [tuple(jax.numpy.asarray(t.cpu().numpy()) for t in pair) for pair in start]
    run = jax.jit(function, donate_argnums=(1,))
    split = jax.jit(lambda key: jax.random.split(key, 2))
    many = jax.jit(lambda key: jax.random.split(key, chains))

    def advance(steps: int) -> None:
        nonlocal key, state
        if steps % count:
            raise ValueError(f"steps go {count} at a time, {steps} were asked for")
        for _ in range(steps // count):
            key, now = split(key)
            state = run(many(now) if chains > 1 else now, state, x, y)
        jax.block_until_ready(state)

    def position() -> Tensor:
        leaves = [np.array(p)[0] if chains > 1 else np.array(p) for p in jax.tree.leaves(state)]
        return flat(torch.from_numpy(leaf) for leaf in leaves)

    def layers() -> Layers:
        pairs = [[torch.from_numpy(np.array(t)) for t in pair] for pair in state]
        return [(weight, bias) for weight, bias in pairs]

    return Ready(advance, position, multiple=count, layers=layers)
