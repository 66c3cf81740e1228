"""What people write by hand in PyTorch: SGD, SGD compiled, and SGLD as SGD plus ``torch.randn``.

All draw a fresh minibatch every step, from data that are already on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from lab.speed.contender import Ready
from lab.speed.problems import PRIOR_VARIANCE, STEP_SIZE, Problem


def minibatch(problem: Problem, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows drawn with replacement, on the problem's device."""
    index = torch.randint(
        problem.num_data, (problem.batch_size,), generator=generator, device=problem.device
    )
    return problem.x[index], problem.y[index]


def generator(problem: Problem) -> torch.Generator:
    """The random numbers of one contender, from the problem's seed."""
    return torch.Generator(problem.device).manual_seed(problem.seed)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers in a row, on the CPU, for comparison between contenders."""
    return torch.cat([t.detach().flatten() for t in tensors]).cpu()


def sgd(problem: Problem, chains: int = 1, *, noise: bool = False) -> Ready:
    """``torch.optim.SGD`` in the loop that every tutorial shows; with ``noise``, SGLD by hand:
    weight decay 1/(N variance) is the prior, sqrt(2 eta / N) randn the noise."""
    assert chains == 1
    network, random = problem.build(), generator(problem)
    decay = 1 / (problem.num_data * PRIOR_VARIANCE) if noise else 0.0
    scale = math.sqrt(2 * STEP_SIZE / problem.num_data)
    optimizer = torch.optim.SGD(network.parameters(), lr=STEP_SIZE, weight_decay=decay)

    def advance(count: int) -> None:
        for _ in range(count):
            x, y = minibatch(problem, random)
            optimizer.zero_grad()
            problem.loss(network(x), y).backward()
            optimizer.step()
            if noise:
                with torch.no_grad():
                    for p in network.parameters():
                        draw = torch.randn(p.shape, generator=random, device=p.device)
                        p.add_(draw, alpha=scale)

    return Ready(advance, lambda: flat(network.parameters()))


def adam(problem: Problem, chains: int = 1) -> Ready:
    """``torch.optim.Adam`` in the same loop."""
    assert chains == 1
    network, random = problem.build(), generator(problem)
    optimizer = torch.optim.Adam(network.parameters(), lr=STEP_SIZE)

    def advance(count: int) -> None:
        for _ in range(count):
            x, y = minibatch(problem, random)
            optimizer.zero_grad()
            problem.loss(network(x), y).backward()
            optimizer.step()

    return Ready(advance, lambda: flat(network.parameters()))


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
