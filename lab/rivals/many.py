"""Many networks at once, for methods that train or sample several: stacked weights, one graph.

A step draws a minibatch for every network, takes its gradient and hands it to an update in place.
On a GPU it is recorded once as a CUDA graph, so that nobody is slow for Python's sake.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from lab import gpu
from lab.command import say

Stack = dict[str, Tensor]
#: Changes the weights, in place, by their gradients: update(weights, gradients, losses).
Update = Callable[[Stack, Stack, Tensor], None]


class Many:
    """``count`` networks, each from a start of its own."""

    def __init__(
        self, make: Callable[[], nn.Module], rows: tuple[Tensor, Tensor], *, count: int, seed: int
    ) -> None:
        torch.manual_seed(seed)
        (self.x, self.y), self.count = rows, count
        device = self.x.device
        networks = [make().to(device) for _ in range(count)]
        self.network = networks[0]
        weights, _ = stack_module_state(networks)
        self.weights = {k: v.detach().clone() for k, v in weights.items()}
        # One after the other on a GPU: convolutions of several networks would be grouped ones.
        self.in_turn = device.type == "cuda"

    def _loss(self, weights: Stack, x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(self.network, weights, (x,))
        return cross_entropy(outputs.flatten(0, -2), y.flatten())

    def _gradients(self, x: Tensor, y: Tensor) -> tuple[Stack, Tensor]:
        """Of every network on its minibatch, and their losses."""
        if not self.in_turn:
            one = grad_and_value(self._loss)
            return vmap(one, randomness="different")(self.weights, x, y)
        found, losses = [], []
        for k in range(self.count):
            own = {name: v.detach().requires_grad_() for name, v in of(self.weights, k).items()}
            losses.append(self._loss(own, x[k], y[k]))
            found.append(torch.autograd.grad(losses[-1], list(own.values())))
        stacked = [torch.stack(parts) for parts in zip(*found, strict=True)]
        return dict(zip(self.weights, stacked, strict=True)), torch.stack(losses).detach()

    def per_network(self, values: Tensor, like: Tensor) -> Tensor:
        """(network,) values against weights of (network, ...)."""
        return values.reshape(-1, *(1,) * (like.ndim - 1))

    def stepper(self, update: Update, batch: int) -> Callable[[], None]:
        """A function that takes one step."""

        def step() -> None:
            rows = torch.randint(0, len(self.x), (self.count, batch), device=self.x.device)
            g, losses = self._gradients(self.x[rows], self.y[rows])
            with torch.no_grad():
                update(self.weights, g, losses)

        if not self.in_turn:
            return step
        try:
            return gpu.recorded(step, warm=3)
        except RuntimeError as error:  # then step by step, and slower
            say(f"not recorded: {str(error).splitlines()[0]}")
            torch.cuda.synchronize()
            return step

    @torch.no_grad()
    def predict(self, weights: Stack, x: Tensor, rows: int = 2000) -> Tensor:
        """Probabilities of every network: (network, n, ..., classes)."""
        return torch.stack([
            torch.cat([functional_call(self.network, of(weights, k), (p,)).softmax(-1)
                       for p in x.split(rows)])
            for k in range(self.count)
        ])  # fmt: skip

    def copy(self) -> Stack:
        return {k: v.clone() for k, v in self.weights.items()}


def of(weights: Stack, network: int) -> Stack:
    """The weights of one network."""
    return {k: v[network] for k, v in weights.items()}


class Clock:
    """Seconds since a start, with the device at rest."""

    def __init__(self, seconds: float, device: torch.device) -> None:
        self.seconds, self.device, self.began = seconds, device, time.perf_counter()
        self.steps = 5  # between two looks at it

    def run(self, step: Callable[[], None]) -> None:
        """Takes some steps: about half a percent of the time, at most 100."""
        before = self.spent()
        for _ in range(self.steps):
            step()
        pace = (self.spent() - before) / self.steps
        self.steps = max(1, min(100, 2 * self.steps, int(0.005 * self.seconds / pace)))

    def spent(self) -> float:
        gpu.synchronise(self.device)
        return time.perf_counter() - self.began


def nll(probabilities: Tensor, y: Tensor) -> Tensor:
    """Of a mixture (..., n, classes): (...,)."""
    picked = probabilities.gather(-1, y.expand(probabilities.shape[:-1])[..., None])[..., 0]
    return -picked.clamp_min(1e-30).log().flatten(-y.ndim).mean(-1)
