"""A small network's posterior written in JAX, and what is known of it from draws.

The network is written once more in JAX (layers found by their torch modules), so that nothing but
the weights' names is shared with the sampler under test. Prior: independent Gaussians, mean 0, one
variance per tensor. Log density: sum_n ln p(y_n | x_n) + sum ln N(w; 0, variance).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import torch

from lab.defaults.small import Problem
from lab.rivals.in_jax import forward
from natural_langevin.diagnostics import ranks


def log_likelihood(problem: Problem, outputs: Any, y: Any) -> Any:
    """ln p(y_n | outputs_n): (n,)."""
    kind = type(problem.likelihood).__name__
    if kind == "Categorical":
        return jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], 1)[:, 0]
    if kind == "Gaussian":
        sigma = float(problem.likelihood.sigma)  # type: ignore[attr-defined]
        z = (y - outputs) / sigma
        return (-0.5 * z**2 - jnp.log(sigma * jnp.sqrt(2 * jnp.pi))).sum(1)
    if kind == "HeteroscedasticGaussian":
        mean, log_variance = jnp.split(outputs, 2, axis=1)
        terms = (y - mean) ** 2 * jnp.exp(-log_variance) + log_variance + jnp.log(2 * jnp.pi)
        return -terms.sum(1) / 2
    return (y * outputs - jnp.exp(outputs) - jax.scipy.special.gammaln(y + 1)).sum(1)


def flat_density(problem: Problem, variances: Mapping[str, float]) -> tuple[Any, Any, int]:
    """Of a flat vector z, weights divided by their prior's deviations: ln p(y | z) + ln p(z) up to
    a constant, the outputs on given inputs, and how many weights there are."""
    network = problem.network()
    x, y = jnp.asarray(problem.x.numpy(), float), jnp.asarray(problem.y.numpy())
    shapes = {name: jnp.zeros(p.shape) for name, p in network.named_parameters()}
    zeros, unravel = jax.flatten_util.ravel_pytree(shapes)

    def outputs(z: Any, x: Any) -> Any:
        whitened = unravel(z)
        return forward(network, {k: w * variances[k] ** 0.5 for k, w in whitened.items()}, x)

    def log_density(z: Any) -> Any:
        return log_likelihood(problem, outputs(z, x), y).sum() - 0.5 * (z**2).sum()

    return log_density, outputs, len(zeros)


def summary(problem: Problem, outputs: np.ndarray) -> dict[str, Any]:
    """Of (chain, draw, n, outputs): test NLL of the averaged densities, mean prediction and its sd
    over networks, and how well the predictions are mixed: the largest and the median R-hat and the
    median effective draws of up to 1,000 of them, spread over the test inputs."""
    with jax.enable_x64(True):
        return _summary(problem, outputs)


def _summary(problem: Problem, outputs: np.ndarray) -> dict[str, Any]:
    def nll(out: np.ndarray) -> float:
        y = jnp.asarray(problem.y_test.numpy())
        logp = jax.vmap(lambda o: log_likelihood(problem, o, y))(jnp.asarray(out))
        return float(-(jax.scipy.special.logsumexp(logp, axis=0) - jnp.log(len(out))).mean())

    flat = outputs.reshape(-1, *outputs.shape[2:])
    if type(problem.likelihood).__name__ == "Categorical":
        values = np.asarray(jax.nn.softmax(flat, -1))
    elif type(problem.likelihood).__name__ == "Poisson":
        values = np.exp(flat)
    else:
        values = flat
    numbers = values.reshape(*outputs.shape[:2], -1)
    some = np.asarray(numbers[:, :, :: -(-numbers.shape[2] // 1000)], np.float64)
    rhat = ranks.rhat(some)
    return {
        "nll": nll(flat),
        "nll_of_chains": [nll(chain) for chain in outputs],
        "mean": torch.from_numpy(values.mean(0)),
        "sd": torch.from_numpy(values.std(0)),
        "rhat_max": float(rhat.max()),
        "rhat_median": float(np.median(rhat)),
        "ess_median": float(np.median(ranks.ess(some))),
    }
