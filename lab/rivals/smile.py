"""SMILE and pSMILE by their authors' kernels (github.com/EmanuelSommer/SMILE, in jax).

Its folder and that of blackjax 1.2.2 must be on PYTHONPATH. Theirs are the kernels and, from their
configurations for LeNet on Fashion-MNIST, prior, minibatches, tuning and the grid of step sizes.
Written here: the network in jax, warm starts (``methods.trained``), all chains at once where they
give each a device, and the choice of the step size on held-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.rivals.many import Clock, Many, Stack, nll
from lab.rivals.problems import Problem

GRID, BATCH, THIN, MOST = (1e-2, 1e-3, 1e-4), 512, 100, 100
#: By kernel: of their files img_smilet_fmnist.yaml and img_noisysmile_fmnist.yaml.
TUNING = {
    "SMILET": {"reset_prob": 0.98, "adaption_prob": 0.1, "adaption_strength": 0.02},
    "NOISYSMILE": {"reset_prob": 1.0, "adaption_prob": 0.0, "adaption_strength": 0.0},
}


def forward(layers: list[nn.Module], weights: dict[str, Any], x: Any) -> Any:
    """The outputs of an ``nn.Sequential`` of these layers, in jax; convolutions have stride 1."""
    import jax

    for number, layer in enumerate(layers):
        own = {k: weights.get(f"{number}.{k}") for k in ("weight", "bias")}
        if isinstance(layer, nn.Conv2d):
            x = _convolved(x, own["weight"], int(layer.padding[0])) + own["bias"][:, None, None]
        elif isinstance(layer, nn.Linear):
            x = x @ own["weight"].T + own["bias"]
        elif isinstance(layer, nn.ReLU):
            x = jax.nn.relu(x)
        elif isinstance(layer, nn.GELU):
            x = jax.nn.gelu(x, approximate=False)
        elif isinstance(layer, nn.AvgPool2d):
            k = int(layer.kernel_size)  # type: ignore[arg-type]
            n, c, h, w = x.shape
            x = x[:, :, : h // k * k, : w // k * k].reshape(n, c, h // k, k, w // k, k).mean((3, 5))
        elif isinstance(layer, nn.Flatten):
            x = x.reshape(len(x), -1)
        else:
            raise ValueError(f"SMILE's rows have no {type(layer).__name__} in jax")
    return x


def _convolved(x: Any, weight: Any, padding: int) -> Any:
    """By patches and one product: convolutions of several networks at once would be grouped ones,
    which are slow."""
    import jax.numpy as jnp

    side, around = weight.shape[-1], (padding, padding)
    x = jnp.pad(x, ((0, 0), (0, 0), around, around))
    h, w = x.shape[2] - side + 1, x.shape[3] - side + 1
    parts = [x[:, :, i : i + h, j : j + w] for i in range(side) for j in range(side)]
    patches = jnp.stack(parts, 2)  # (n, channel, place of the filter, h, w)
    return jnp.einsum("ncphw,ocp->nohw", patches, weight.reshape(*weight.shape[:2], -1))


class Chains:
    """Chains of one of their kernels, from weights (chain, *shape)."""

    def __init__(self, kernel: str, many: Many, seed: int) -> None:
        import jax
        import jax.numpy as jnp

        if not hasattr(jax, "tree_map"):  # theirs is of before its removal
            jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
        from src.kernels import smile  # type: ignore[import-not-found]

        self.jax, self.jnp, self.many = jax, jnp, many
        if not isinstance(many.network, nn.Sequential):
            raise ValueError("SMILE's rows are of nn.Sequential alone")
        layers = list(many.network)
        self.x, self.y = (jnp.asarray(v.cpu().numpy()) for v in (many.x, many.y))
        parts = len(self.x) // BATCH or 1

        def log_posterior(position: Any, x: Any, y: Any) -> Any:
            logits = jax.nn.log_softmax(forward(layers, position, x))
            prior = sum(jnp.square(v).sum() for v in jax.tree.leaves(position)) / 2
            return parts * jnp.take_along_axis(logits, y[:, None], 1).sum() - prior

        class Together(getattr(smile, kernel)):  # type: ignore[misc]
            def _compile_sample_step(self, **given: Any) -> None:
                self.one = jax.vmap(partial(self._sample_step, **given), in_axes=(0, 0, 0, None))

        self.kind = Together
        self.made = partial(
            Together, jax.value_and_grad(log_posterior), **TUNING[kernel], smoothing_factor=0.01,
            num_integration_steps=1,
        )  # fmt: skip
        self.key = jax.random.key(seed)
        self._run: Callable[..., Any] | None = None

    def begin(self, start: Stack, sizes: Tensor) -> None:
        """Weights and step sizes of the chains."""
        position = {k: self.jnp.asarray(v.cpu().numpy()) for k, v in start.items()}
        sampler = self.made(position=position)
        self.state = sampler.state
        self.state.step_size = self.jnp.asarray(sizes.cpu().numpy())
        if self._run is None:
            jax, rows = self.jax, min(BATCH, len(self.x))

            def step(state: Any, key: Any) -> Any:
                which, own = jax.random.split(key)
                index = jax.random.randint(which, (len(sizes), rows), 0, len(self.x))
                keys = jax.random.split(own, len(sizes))
                return sampler.one(state, keys, (self.x[index], self.y[index]), 0.0), None

            @jax.jit
            def run(state: Any, key: Any) -> Any:
                return jax.lax.scan(step, state, jax.random.split(key, THIN))[0]

            self._run = run

    def go(self) -> Stack:
        """The weights after ``THIN`` steps."""
        assert self._run is not None
        self.key, own = self.jax.random.split(self.key)
        self.state = self._run(self.state, own)
        return {
            k: torch.from_numpy(np.array(v)).to(self.many.x.device)
            for k, v in self.state.position.items()
        }


def sampled(
    kernel: str, problem: Problem, seed: int, clock: Clock, many: Many, start: Stack
) -> Callable[[Tensor], Tensor]:
    """Two tenths of the time for the grid of step sizes, a third of the rest for burn-in."""
    (x, y), count = problem.held_out, many.count
    sizes = torch.tensor(GRID).repeat(-(-count // len(GRID)))[:count]
    chains, total = Chains(kernel, many, seed), None
    chains.begin(start, sizes)
    while total is None or clock.spent() < 0.5 * clock.seconds:
        now = many.predict(chains.go(), x)
        total = now if total is None else total + now
    scores = nll(total / total.sum(-1, keepdim=True), y).nan_to_num(math.inf)
    chains.begin(start, torch.full_like(sizes, float(sizes[int(scores.argmin())])))
    began, kept, took = clock.spent(), list[Stack](), 0.0
    ends = max(0.97 * clock.seconds, began)
    while not kept or clock.spent() + took < ends:
        before, weights = clock.spent(), chains.go()
        now = clock.spent()
        took = now - before
        if now >= (2 * began + ends) / 3 or now + took >= ends:
            kept = [*kept, weights][:: 1 + (len(kept) >= MOST)]
    return lambda x: torch.stack([many.predict(w, x).nanmean(0) for w in kept]).nanmean(0)
