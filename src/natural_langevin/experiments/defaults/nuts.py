"""NUTS on a small network's posterior, by blackjax: the reference for ``small``.

The network is written once more in JAX (layers found by their torch modules), so that nothing but
the weights' names is shared with the sampler under test. Prior: independent Gaussians, mean 0, one
variance per tensor. Log density: sum_n ln p(y_n | x_n) + sum ln N(w; 0, variance).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from natural_langevin.experiments.defaults.small import Problem

ACTIVATIONS = {nn.Tanh: jnp.tanh, nn.ReLU: jax.nn.relu}
Weights = dict[str, Any]


def forward(network: nn.Module, w: Weights, x: Any) -> Any:
    """The sequential torch network as a function of JAX arrays."""
    for name, layer in network.named_children():
        if isinstance(layer, nn.Linear):
            x = x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
        elif isinstance(layer, nn.Conv2d):
            x = jax.lax.conv(x, w[f"{name}.weight"], (1, 1), "VALID")
            x = x + w[f"{name}.bias"][None, :, None, None]
        elif isinstance(layer, nn.AvgPool2d):
            b, c, h, v = x.shape
            x = x.reshape(b, c, h // 2, 2, v // 2, 2).mean((3, 5))
        elif isinstance(layer, nn.Flatten):
            x = x.reshape(len(x), -1)
        else:
            x = ACTIVATIONS[type(layer)](x)
    return x


def log_likelihood(problem: Problem, outputs: Any, y: Any) -> Any:
    """ln p(y_n | outputs_n): (n,)."""
    kind = type(problem.likelihood).__name__
    if kind == "Categorical":
        return jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], 1)[:, 0]
    if kind == "Gaussian":
        sigma = float(problem.likelihood.sigma)  # type: ignore[attr-defined]
        z = (y - outputs) / sigma
        return (-0.5 * z**2 - jnp.log(sigma * jnp.sqrt(2 * jnp.pi))).sum(1)
    return (y * outputs - jnp.exp(outputs) - jax.scipy.special.gammaln(y + 1)).sum(1)


def sample(
    problem: Problem, variances: Mapping[str, float], *, chains: int = 4, warmup: int = 500,
    draws: int = 500, seed: int = 0,
) -> np.ndarray:  # fmt: skip
    """Outputs of the drawn networks on the test inputs: (chain, draw, n, outputs). In float64, for
    which the rest of the process keeps its own setting."""
    with jax.enable_x64(True):
        return _sample(problem, variances, chains=chains, warmup=warmup, draws=draws, seed=seed)


def _sample(
    problem: Problem, variances: Mapping[str, float], *, chains: int, warmup: int, draws: int,
    seed: int,
) -> np.ndarray:  # fmt: skip
    network = problem.network()
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    x, y, x_test = (jnp.asarray(t.numpy()) for t in (problem.x, problem.y, problem.x_test))
    x, x_test = x.astype(jnp.float64), x_test.astype(jnp.float64)

    def weights(z: Weights) -> Weights:
        return {k: z[k] * np.sqrt(variances[k]) for k in z}  # whitened by the prior

    def log_density(z: Weights) -> Any:
        fit = log_likelihood(problem, forward(network, weights(z), x), y).sum()
        return fit - 0.5 * sum((v**2).sum() for v in z.values())

    def one(key: Any) -> Any:
        keys = jax.random.split(key, len(shapes) + 2)
        start = {
            k: 0.5 * jax.random.normal(kk, s)
            for kk, (k, s) in zip(keys[2:], shapes.items(), strict=True)
        }
        adapt = blackjax.window_adaptation(blackjax.nuts, log_density, target_acceptance_rate=0.8)
        (state, parameters), _ = adapt.run(keys[0], start, warmup)
        kernel = blackjax.nuts(log_density, **parameters, max_num_doublings=8)

        def step(state: Any, key: Any) -> Any:
            state, _ = kernel.step(key, state)
            return state, forward(network, weights(state.position), x_test)

        return jax.lax.scan(step, state, jax.random.split(keys[1], draws))[1]

    run = jax.jit(one)
    return np.stack([np.asarray(run(k)) for k in jax.random.split(jax.random.key(seed), chains)])


def summary(problem: Problem, outputs: np.ndarray) -> dict[str, Any]:
    """Test NLL of the averaged densities, mean prediction and its sd over networks."""
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
    return {
        "nll": nll(flat),
        "nll_of_chains": [nll(chain) for chain in outputs],
        "mean": torch.from_numpy(values.mean(0)),
        "sd": torch.from_numpy(values.std(0)),
    }
