"""Effective samples per second of small networks: ours beside MCLMC (MILE's sampler) and NUTS.

    pip install blackjax  # in an environment of its own
    python -m lab.rivals.effective --out results/effective.json

The same posterior, N(0, 1) on all weights and known noise, four chains, one core, the functions'
values at fifty inputs: the bulk effective sample size of each, the smallest and the median, over
CPU-seconds with everything included (compiling, tuning, coming down), and of sampling alone.
Chains of blackjax's methods start from trained networks, as MILE's do; MCLMC is tuned by blackjax's
own search with its defaults, NUTS by its window adaptation. All data are in every step of theirs;
ours are defaults, and the same with all data.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lab.command import study
from lab.results import write_results
from natural_langevin import Langevin, likelihoods, priors
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.diagnostics import ranks

CHAINS, NOISE = 4, 0.2


class Small(NamedTuple):
    """A regression by a network with tanh units."""

    widths: tuple[int, ...]
    x: Tensor
    y: Tensor
    at: Tensor  # where functions are compared

    def network(self) -> nn.Sequential:
        layers: list[nn.Module] = []
        for i, o in zip(self.widths, self.widths[1:], strict=False):
            layers += [nn.Linear(i, o), nn.Tanh()]
        return nn.Sequential(*layers[:-1])


def small(widths: tuple[int, ...], rows: int) -> Small:
    g = torch.Generator().manual_seed(0)
    x, at = (torch.rand(n, widths[0], generator=g) * 4 - 2 for n in (rows, 50))
    y = torch.sin(2 * x[:, :1]) + 0.3 * x.sum(1, keepdim=True)
    return Small(widths, x, y + NOISE * torch.randn(rows, 1, generator=g), at)


PROBLEMS = {
    "1-16-1, 200 rows": small((1, 16, 1), 200),
    "5-16-16-1, 500 rows": small((5, 16, 16, 1), 500),
}


class Run(NamedTuple):
    """Function values (chain, draw, input), seconds in all and of sampling, and log-likelihood."""

    values: np.ndarray[Any, Any]
    seconds: float
    sampling: float
    told: dict[str, Any]


def ours(of: Small, size: int, *, whole: bool) -> Run:
    torch.manual_seed(0)
    began = time.process_time()
    sampler = Langevin(
        of.network(), likelihoods.Gaussian(sigma=NOISE), prior=priors.Gaussian(1.0), chains=CHAINS,
        seed=0, calibrate=False,
    )  # fmt: skip
    plan = sampler.plan((of.x, of.y), batch_size=len(of.x) if whole else None)
    middle = time.process_time()
    found = sampler.sample((of.x, of.y), size, plan=plan, keep=2000, progress=False)
    ended = time.process_time()
    model, stacked = of.network(), {k: v.flatten(0, 1) for k, v in found.samples.items()}
    f = vmap(lambda w: functional_call(model, w, (of.at,))[:, 0])(stacked)
    values = f.unflatten(0, (CHAINS, -1)).double().numpy()
    told = {"steps": found.config["steps"], "batch_size": found.config["batch_size"]}
    return Run(values, ended - began, ended - middle, told)


def theirs(of: Small, size: int, *, method: str) -> Run:
    """By blackjax: float32, chains one after the other in one compiled function."""
    import blackjax
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    x, y, at = (jnp.asarray(v.numpy()) for v in (of.x, of.y, of.at))
    pairs = list(zip(of.widths, of.widths[1:], strict=False))
    shapes = [(jnp.zeros((o, i)), jnp.zeros(o)) for i, o in pairs]
    flat, unflatten = ravel_pytree(shapes)

    def network(w: Any, x: Any) -> Any:
        *hidden, (last, bias) = unflatten(w)
        for weight, b in hidden:
            x = jnp.tanh(x @ weight.T + b)
        return (x @ last.T + bias)[:, 0]

    def log_density(w: Any) -> Any:
        residual = (network(w, x) - y[:, 0]) / NOISE
        return -0.5 * (residual**2).sum() - 0.5 * (w**2).sum()

    def trained(key: Any) -> Any:
        """By Adam, from small random weights."""
        start = jnp.sqrt(1 / max(of.widths)) * jax.random.normal(key, flat.shape)

        def step(carry: Any, k: Any) -> Any:
            w, m, v = carry
            g = -jax.grad(log_density)(w)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            hat = (m / (1 - 0.9 ** (k + 1))) / (jnp.sqrt(v / (1 - 0.999 ** (k + 1))) + 1e-8)
            return (w - 1e-2 * hat, m, v), None

        zero = jnp.zeros_like(start)
        return jax.lax.scan(step, (start, zero, zero), jnp.arange(2000))[0][0]

    began = time.process_time()
    keys = jax.random.split(jax.random.key(0), (3, CHAINS))
    starts = jax.block_until_ready(jax.jit(jax.vmap(trained))(keys[0]))
    thin = max(1, size // 2000)
    if method == "MCLMC":
        kernel = blackjax.mcmc.mclmc.build_kernel()

        def tuned(start: Any, key: Any) -> Any:
            state = blackjax.mcmc.mclmc.init(start, log_density, key)
            return blackjax.mclmc_find_L_and_step_size(
                mclmc_kernel=kernel, logdensity_fn=log_density, num_steps=size, state=state,
                rng_key=key, diagonal_preconditioning=True,
            )[:2]  # fmt: skip

        states, found = jax.block_until_ready(jax.jit(jax.vmap(tuned))(starts, keys[1]))

        def move(key: Any, state: Any, p: Any) -> Any:
            return kernel(key, state, log_density, p.inverse_mass_matrix, p.L, p.step_size)[0]
    else:
        size, thin = size // 50, 1
        adapt = blackjax.window_adaptation(blackjax.nuts, log_density)
        (states, found), _ = jax.block_until_ready(
            jax.jit(jax.vmap(lambda w, k: adapt.run(k, w, num_steps=500)))(starts, keys[1])
        )
        nuts = blackjax.nuts.build_kernel()

        def move(key: Any, state: Any, p: Any) -> Any:
            return nuts(key, state, log_density, p["step_size"], p["inverse_mass_matrix"])[0]

    def chain(state: Any, p: Any, key: Any) -> Any:
        def one(state: Any, key: Any) -> Any:
            state = jax.lax.fori_loop(
                0, thin, lambda k, s: move(jax.random.fold_in(key, k), s, p), state
            )
            return state, network(state.position, at)

        return jax.lax.scan(one, state, jax.random.split(key, size // thin))[1]

    run = jax.jit(jax.vmap(chain)).lower(states, found, keys[2]).compile()
    middle = time.process_time()
    values = np.asarray(jax.block_until_ready(run(states, found, keys[2])), dtype=np.float64)
    ended = time.process_time()
    return Run(values, ended - began, ended - middle, {"steps": size, "thin": thin})


METHODS: dict[str, Callable[[Small, int], Run]] = {
    "ours": lambda of, size: ours(of, size, whole=False),
    "ours, all data": lambda of, size: ours(of, size, whole=True),
    "MCLMC": lambda of, size: theirs(of, size, method="MCLMC"),
    "NUTS": lambda of, size: theirs(of, size, method="NUTS"),
}


def described(run: Run) -> dict[str, Any]:
    """Effective samples of the values at every input, and per second."""
    effective, rhat = ranks.ess(run.values), ranks.rhat(run.values)
    least, middle = float(effective.min()), float(np.median(effective))
    return {
        "seconds": run.seconds, "sampling_seconds": run.sampling, **run.told,
        "draws": int(np.prod(run.values.shape[:2])), "ess": [least, middle],
        "rhat": [float(np.median(rhat)), float(rhat.max())],
        "per_second": [least / run.seconds, middle / run.seconds],
        "per_sampling_second": [least / run.sampling, middle / run.sampling],
        "mean": run.values.mean((0, 1)).tolist(), "sd": run.values.std((0, 1)).tolist(),
    }  # fmt: skip


def main() -> None:
    """Runs what the file does not have yet."""
    parser = study(__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {"steps": given.steps, "rows": {}}
    if given.out.exists():
        results = json.loads(given.out.read_text())
    for name, of in PROBLEMS.items():
        rows = results["rows"].setdefault(name, {})
        for method in [m for m in given.methods if m not in rows]:
            rows[method] = described(METHODS[method](of, given.steps))
            shown = {k: v for k, v in rows[method].items() if k not in ("mean", "sd")}
            print(name, method, json.dumps(shown), flush=True)
            results["origin"] = origin("cpu")
            write_results(given.out, results)


if __name__ == "__main__":
    main()
