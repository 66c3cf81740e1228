"""Long chains of plain HMC for the NLL with the last layer integrated (see ``last_layer``).

    python -m lab.defaults.hmc_chains --problem 10 --scale 1 --chains 6 --seconds 50

A chain begins where a short one of NUTS ended its warm-up, with its diagonal mass and .9 of its
step, in float64, and has trajectories of 1 to 1,023 steps by chance. A gradient takes 20 µs in
them, and 100 in NUTS, whose trees are as long here. What comes of it is written into the reference.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lab.defaults import last_layer, nuts, nuts_chains, nuts_files
from lab.defaults.gaps import GAPS
from lab.defaults.small import PROBLEMS, Problem

FOLDER = Path(__file__).resolve().parent.parent.parent / "results" / "nuts"


def _draws(log_density: Any, key: Any, z: Any, size: Any, inverse_mass: Any, length: int) -> Any:
    """A hundred draws from ``z`` on, and how likely each was accepted."""
    gradient = jax.value_and_grad(log_density)

    def leap(_: Any, at: Any) -> Any:
        z, momentum, _, slope = at
        momentum = momentum + 0.5 * size * slope
        z = z + size * inverse_mass * momentum
        value, slope = gradient(z)
        return z, momentum + 0.5 * size * slope, value, slope

    def draw(here: Any, key: Any) -> Any:
        z, value, slope = here
        first, second, third = jax.random.split(key, 3)
        momentum = jax.random.normal(first, z.shape) / jnp.sqrt(inverse_mass)
        steps = jax.random.randint(second, (), 1, 2 * length)
        there = jax.lax.fori_loop(0, steps, leap, (z, momentum, value, slope))

        def energy(momentum: Any, value: Any) -> Any:
            return 0.5 * (momentum**2 * inverse_mass).sum() - value

        gain = energy(momentum, value) - energy(*there[1:3])
        likely = jnp.exp(jnp.minimum(0.0, jnp.where(jnp.isnan(gain), -jnp.inf, gain)))
        taken = jax.random.uniform(third) < likely
        new = (there[0], *there[2:])
        here = jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, here)
        return here, (here[0], likely)

    return jax.lax.scan(draw, (z, *gradient(z)), jax.random.split(key, 100))[1]


def chain(
    problem: Problem, variances: Mapping[str, float], *, seed: int, seconds: float,
    warmup: int = 500, length: int = 512, skipped: int = 300,
) -> tuple[np.ndarray, float]:  # fmt: skip
    """Draws of z (draw, weight) without the first ``skipped``, and the mean acceptance."""
    start = nuts_chains.STARTS[seed % 2]
    begun = nuts_chains.chain(problem, variances, seed=seed, warmup=warmup, draws=1, start=start)
    with jax.enable_x64(True):
        log_density, _, _ = nuts.flat_density(problem, variances)
        further = jax.jit(partial(_draws, log_density, length=length))
        z, size = jnp.asarray(begun["drawn"][-1], float), 0.9 * float(begun["step_size"])
        inverse_mass, key = jnp.asarray(begun["inverse_mass"]), jax.random.key(10_000 + seed)
        drawn, accepted, began = [], [], time.perf_counter()
        while len(drawn) * 100 <= skipped or time.perf_counter() - began < seconds:
            more, likely = further(
                key=jax.random.fold_in(key, len(drawn)), z=z, size=size, inverse_mass=inverse_mass
            )
            z = more[-1]
            drawn.append(np.asarray(more))
            accepted.append(float(likely.mean()))
    return np.concatenate(drawn)[skipped:], float(np.mean(accepted))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", type=int, required=True, help="as in nuts_chains")
    parser.add_argument("--scale", type=float, required=True, help="of the prior 2 scale / fan-in")
    parser.add_argument("--chains", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=50.0, help="of every chain")
    options = parser.parse_args()
    problem = (*PROBLEMS, *GAPS)[options.problem]()
    variances = nuts_files.variances(problem, options.scale)
    logs = []
    for seed in range(100, 100 + options.chains):
        drawn, accepted = chain(problem, variances, seed=seed, seconds=options.seconds)
        weights = nuts_chains.named(problem, variances, drawn)
        logs.append(last_layer.log_density(problem, weights, variances))
        print(seed, len(drawn), f"accepted {accepted:.2f}, NLL {last_layer.nll(logs[-1:])[0]:.4f}")
    value, error = last_layer.nll(logs)
    file = FOLDER / f"{nuts_files.stem(problem)}{options.scale:g}.npz"
    with np.load(file) as stored:
        found = {k: stored[k] for k in stored.files}
    nuts_files.store(
        file,
        found | {
            "integrated": value, "integrated_error": error,
            "integrated_draws": sum(map(len, logs)), "integrated_chains": len(logs),
        },
    )  # fmt: skip
    print(problem.name, value, error)


if __name__ == "__main__":
    main()
