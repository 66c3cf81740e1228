"""The loops of ``natural-langevin bench``, and the SGD step as one compiled function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from lab.speed.contender import Ready, Unavailable
from lab.speed.problems import Problem
from natural_langevin.cli.experiments.bench import STEP_SIZE, Way


def generator(problem: Problem) -> torch.Generator:
    """The random numbers of one contender, from the problem's seed."""
    return torch.Generator(problem.device).manual_seed(problem.seed)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers in a row, on the CPU, for comparison between contenders."""
    return torch.cat([t.detach().flatten() for t in tensors]).cpu()


def as_in_bench(
    problem: Problem, chains: int = 1, *, build: Callable[..., Way], **options: Any
) -> Ready:
    """One of the loops of ``natural-langevin bench``."""
    assert chains == 1
    try:
        way = build(problem.task, problem.seed, **options)
    except ImportError as error:
        remedy = f"pip install 'natural-langevin[bench]' for {error.name}"
        raise Unavailable("not installed", remedy) from None
    return Ready(way.advance, lambda: flat(way.weights()))


def compiled_sgd(problem: Problem, chains: int = 1) -> Ready:
    """The whole SGD step as one compiled function, updating in place; on CUDA, as a graph."""
    assert chains == 1
    network, random = problem.build(), generator(problem)
    params = {name: p.detach() for name, p in network.named_parameters()}

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return problem.loss(torch.func.functional_call(network, params, (x,)), y)

    def step(params: dict[str, Tensor], x: Tensor, y: Tensor, index: Tensor) -> None:
        gradient = torch.func.grad(loss)(params, x[index], y[index])
        for name, p in params.items():
            p.sub_(gradient[name], alpha=STEP_SIZE)

    fast = torch.compile(step, fullgraph=True, dynamic=False)
    index = torch.empty(problem.batch_size, dtype=torch.int64, device=problem.device)
    warm, graph = False, None

    def launch() -> None:
        nonlocal warm, graph
        if warm and graph is None and problem.device.type == "cuda":
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # records, and runs nothing
                fast(params, problem.x, problem.y, index)
        if graph is not None:
            graph.replay()
        else:
            fast(params, problem.x, problem.y, index)
            warm = True

    def advance(count: int) -> None:
        for _ in range(count):
            index.random_(problem.num_data, generator=random)
            launch()

    return Ready(advance, lambda: flat(params.values()))
