"""NUTS (blackjax) on a small network's posterior: the reference for ``small``, chain by chain.

A chain is a process of its own, goes on where it was stopped, and may end by time:

    python -m lab.defaults.nuts_chains --problem 5 --scale 125 \\
        --folder FOLDER --chain 0 --warmup 500 --draws 1000 --seconds 1300
    ... the same with --chain 1, 2, ...
    python -m lab.defaults.nuts_chains --problem 5 --scale 125 \\
        --folder FOLDER --merge results/nuts
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import torch
from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
from blackjax.adaptation.step_size import dual_averaging_adaptation
from blackjax.adaptation.window_adaptation import build_schedule

from lab.defaults import last_layer, nuts, nuts_files
from lab.defaults.gaps import GAPS
from lab.defaults.small import PROBLEMS, Problem

#: Deviations of the prior at which chains begin, by turns: a network that says little, and one
#: whose weights are as large as the prior's. Chains that agree have met from two sides.
STARTS = (0.1, 1.0)
#: (init, update, final) of the adaptation.
SIZE, MASS = dual_averaging_adaptation(0.8), mass_matrix_adaptation(True)


def sample(
    problem: Problem, variances: Mapping[str, float], *, chains: int = 4, warmup: int = 500,
    draws: int = 500, seed: int = 0,
) -> np.ndarray:  # fmt: skip
    """Outputs of the drawn networks on the test inputs: (chain, draw, n, outputs). In float64, for
    which the rest of the process keeps its own setting."""
    with jax.enable_x64(True):
        found = [
            chain(problem, variances, warmup=warmup, draws=draws, seed=seed * 1000 + k)["drawn"]
            for k in range(chains)
        ]
        return outputs_of(problem, variances, np.stack(found))


def outputs_of(problem: Problem, variances: Mapping[str, float], drawn: np.ndarray) -> np.ndarray:
    """(chain, draw, weight) to (chain, draw, n, outputs), on the test inputs."""
    with jax.enable_x64(True):
        _, outputs, _ = nuts.flat_density(problem, variances)
        x = jnp.asarray(problem.x_test.numpy(), float)
        one = jax.jit(lambda z: outputs(z, x))
        return np.stack([np.stack([np.asarray(one(z)) for z in c]) for c in drawn.astype(float)])


def named(
    problem: Problem, variances: Mapping[str, float], drawn: np.ndarray
) -> dict[str, torch.Tensor]:
    """(chain, draw, weight) to weights {name: (chain, draw, *shape)}."""
    shapes = {name: p.shape for name, p in sorted(problem.network().named_parameters())}
    parts = torch.from_numpy(drawn).split([shape.numel() for shape in shapes.values()], -1)
    return {
        name: part.unflatten(-1, shape) * variances[name] ** 0.5
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def chain(
    problem: Problem, variances: Mapping[str, float], *, seed: int, warmup: int, draws: int,
    start: float = 0.5, doublings: int = 10, seconds: float = math.inf, file: Path | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """One chain, from ``start`` deviations of the prior in every weight: draws of z, ``drawn``
    (draw, weight), with the step size, the gradients of each step, the divergent ones, seconds.

    Warm-up as in Stan (step size by dual averaging, diagonal mass matrix in windows). With ``file``
    the chain is written there every minute, and one that was stopped goes on as if it had not been:
    step t has the key fold_in(key(seed), t). ``seconds``: it ends then, with the draws it has."""
    with jax.enable_x64(True):
        return _chain(
            problem, variances, key=jax.random.key(seed), warmup=warmup, draws=draws, start=start,
            doublings=doublings, seconds=seconds, file=file,
        )  # fmt: skip


@lru_cache(maxsize=1)  # compiled once for all chains of a process
def _steps(
    problem: Problem, variances: tuple[tuple[str, float], ...], doublings: int
) -> tuple[Any, Any, Any, int]:
    """The log density, a step while it warms up, a step later, and the number of weights."""
    log_density, _, count = nuts.flat_density(problem, dict(variances))
    kernel = blackjax.nuts.build_kernel()

    def step(most: int, key: Any, state: Any, size: Any, inverse_mass: Any) -> Any:
        return kernel(key, state, log_density, size, inverse_mass, most)

    # Before the mass matrix is known steps are tiny, and the longest trajectories are wasted.
    first = jax.jit(partial(step, min(8, doublings)))
    return log_density, first, first if doublings <= 8 else jax.jit(partial(step, doublings)), count


@jax.jit
def _adapt(slow: Any, ends: Any, of_size: Any, of_mass: Any, state: Any, info: Any) -> Any:
    """Step size after every step, mass matrix at the end of a window of slow ones."""
    of_size = SIZE[1](of_size, info.acceptance_rate)
    of_mass = jax.lax.cond(slow, lambda m: MASS[1](m, state.position), lambda m: m, of_mass)
    return jax.lax.cond(
        ends, lambda s, m: (SIZE[0](SIZE[2](s)), MASS[2](m)), lambda s, m: (s, m), of_size, of_mass
    )


def _resumed(
    file: Path | None, leaves: list[Any]
) -> tuple[list[Any], list[tuple[float, ...]], list[np.ndarray], float]:
    """What the file of a chain that was stopped holds, or the beginning from ``leaves``: its state,
    a log of every step (gradients, divergent, log density), draws, and the seconds so far."""
    if file is None or not file.exists():
        return leaves, [], [], 0.0
    with np.load(file) as kept:
        return (
            [jnp.asarray(kept[f"leaf{k}"]) for k in range(len(leaves))],
            [tuple(row) for row in kept["log"]], list(kept["drawn"]), float(kept["seconds"]),
        )  # fmt: skip


def _chain(
    problem: Problem, variances: Mapping[str, float], *, key: Any, warmup: int, draws: int,
    start: float, doublings: int, seconds: float, file: Path | None,
) -> dict[str, np.ndarray]:  # fmt: skip
    log_density, first, later, count = _steps(problem, tuple(variances.items()), doublings)
    schedule = np.asarray(build_schedule(warmup))
    position = start * jax.random.normal(jax.random.fold_in(key, 2**31), (count,))
    adapted = SIZE[0](0.1), MASS[0](count)
    leaves, tree = jax.tree.flatten((position, *adapted))
    leaves, log, drawn, before = _resumed(file, leaves)
    position, *adapted = jax.tree.unflatten(tree, leaves)
    state = blackjax.nuts.init(position, log_density)

    def result() -> dict[str, np.ndarray]:
        of_size, of_mass = adapted
        return {
            "drawn": np.asarray(drawn, np.float32).reshape(-1, count),
            "log": np.asarray(log), "step_size": np.asarray(SIZE[2](of_size)),
            "inverse_mass": np.asarray(of_mass.inverse_mass_matrix), "warmup": np.asarray(warmup),
            "seconds": np.asarray(before + time.perf_counter() - began),
        }  # fmt: skip

    def keep() -> None:
        if file is not None:
            state_leaves = jax.tree.leaves((state.position, *adapted))
            parts: dict[str, Any] = {f"leaf{k}": np.asarray(v) for k, v in enumerate(state_leaves)}
            beside = file.with_suffix(".part.npz")
            np.savez(beside, **parts | result())
            beside.replace(file)

    began = written = time.perf_counter()
    for t in range(len(log), warmup + draws):
        of_size, of_mass = adapted
        size = jnp.exp(of_size.log_step_size) if t < warmup else SIZE[2](of_size)
        step = first if t < warmup else later
        state, info = step(jax.random.fold_in(key, t), state, size, of_mass.inverse_mass_matrix)
        if t < warmup:
            adapted = _adapt(*(bool(v) for v in schedule[t]), *adapted, state, info)
        else:
            drawn.append(np.asarray(state.position))
        log.append(
            (int(info.num_integration_steps), bool(info.is_divergent), float(state.logdensity))
        )
        now = time.perf_counter()
        if now - written > 60:
            keep()
            written = now
        if now - began > seconds:
            break
    keep()
    return result()


def merge(problem: Problem, variances: Mapping[str, float], files: list[Path], most: int) -> Any:
    """What is known of the posterior from the chains in ``files``, as many draws of each as of the
    shortest, and at most about ``most`` of each, evenly spaced; with how the chains were run."""
    parts = [dict(np.load(file)) for file in files]
    count = min(len(part["drawn"]) for part in parts)
    every = -(-count // most)
    drawn = np.stack([part["drawn"][:count][::every] for part in parts])
    found = nuts.summary(problem, outputs_of(problem, variances, drawn))
    if last_layer.integrable(problem):
        value, error = last_layer.of_chains(problem, named(problem, variances, drawn), variances)
        found |= {"integrated": value, "integrated_error": error}
    after = [part["log"][int(part["warmup"]) :] for part in parts]
    return found | {
        "seconds": sum(float(part["seconds"]) for part in parts),
        "chains": len(parts), "warmup": int(parts[0]["warmup"]), "draws": count, "thin": every,
        "gradients_per_draw": float(np.mean([log[:, 0].mean() for log in after])),
        "divergent": int(sum(log[:, 1].sum() for log in after)),
        "step_sizes": [float(part["step_size"]) for part in parts],
    }  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--problem", type=int, required=True, help="number in small and gaps, from 0"
    )
    parser.add_argument("--scale", type=float, required=True, help="of the prior 2 scale / fan-in")
    parser.add_argument("--folder", type=Path, required=True, help="where chains are kept")
    parser.add_argument("--chain", type=int, help="which; even ones start inside, odd ones outside")
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--doublings", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--merge", type=Path, help="the folder of references")
    parser.add_argument("--most", type=int, default=250, help="draws of a chain that are merged")
    options = parser.parse_args()
    problem = (*PROBLEMS, *GAPS)[options.problem]()
    variances = nuts_files.variances(problem, options.scale)
    stem = nuts_files.stem(problem)
    if options.merge:
        files = sorted(options.folder.glob(f"{stem}{options.scale:g}-chain*.npz"))
        files = [file for file in files if ".part" not in file.name]
        found = merge(problem, variances, files, options.most)
        nuts_files.store(options.merge / f"{stem}{options.scale:g}.npz", found)
        print(problem.name, {k: v for k, v in found.items() if k not in ("mean", "sd")})
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    found = chain(
        problem, variances, seed=options.chain, warmup=options.warmup, draws=options.draws,
        start=STARTS[options.chain % 2], doublings=options.doublings, seconds=options.seconds,
        file=options.folder / f"{stem}{options.scale:g}-chain{options.chain}.npz",
    )  # fmt: skip
    print(problem.name, options.chain, len(found["drawn"]), "draws", float(found["seconds"]), "s")


if __name__ == "__main__":
    main()
