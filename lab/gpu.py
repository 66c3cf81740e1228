"""What a GPU wants: to be waited for, and whole steps as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def synchronise(device: str | torch.device) -> None:
    """Waits for what a GPU has been given; nothing on a CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def recorded(step: Callable[[], Any], *, warm: int = 4) -> Callable[[], None]:
    """Replays ``step``, which has run ``warm`` times before: what a graph records must not have run
    on the usual stream. ``step`` is held: what it writes to are no outputs of the graph, and their
    memory would be given to others."""
    beside(lambda: [step() for _ in range(warm)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(held: Callable[[], Any] = step) -> None:
        graph.replay()

    return replay


def beside(work: Callable[[], Any]) -> None:
    """Runs it on a stream of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
