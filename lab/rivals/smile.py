"""SMILE and pSMILE by their authors' kernels (github.com/EmanuelSommer/SMILE, in jax).

Its folder and that of blackjax 1.2.2 must be on PYTHONPATH. Theirs are the kernels and, from their
configurations for LeNet on Fashion-MNIST and for a character GPT, prior, minibatches, tuning and
the grid of step sizes. Written here: the network in jax, warm starts (``methods.trained``), all
chains at once where they give each a device, and the choice of the step size on held-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lab.rivals.in_jax import forward
from lab.rivals.many import Clock, Many, Stack, nll
from lab.rivals.problems import Problem, Residual

MOST = 100  # draws that are kept


class Settings(NamedTuple):
    """Of one of their configurations: step sizes, rows of a minibatch, steps between two draws, and
    the tuning by kernel."""

    grid: tuple[float, ...]
    batch: int
    thin: int
    tuning: dict[str, dict[str, float]]


TUNED = {"reset_prob": 0.98, "adaption_prob": 0.1, "adaption_strength": 0.02}
#: lenet_fmnist/img_smilet_fmnist.yaml and img_noisysmile_fmnist.yaml.
IMAGES = Settings((1e-2, 1e-3, 1e-4), 512, 100, {
    "SMILET": TUNED,
    "NOISYSMILE": {"reset_prob": 1.0, "adaption_prob": 0.0, "adaption_strength": 0.0},
})  # fmt: skip
#: resnet7/image_class_smile_cifar_medium.yaml, resnet18/image_class_smile_cifar.yaml and theirs of
#: pSMILE, with the grid of step_size_search.yaml and main_search.yaml; draws are closer.
COLOURS = Settings((1e-2, 1e-3, 1e-4, 1e-5), 512, 5, {"SMILET": TUNED, "NOISYSMILE": TUNED})
#: nanogpt/cfg_char_smile.yaml, cfg_char_psmile.yaml and search.yaml; draws are closer.
TEXT = Settings((2e-6, 2e-5, 2e-4, 2e-3), 128, 5, {"SMILET": TUNED, "NOISYSMILE": TUNED})


class Chains:
    """Chains of one of their kernels, from weights (chain, *shape)."""

    def __init__(self, kernel: str, many: Many, seed: int, variance: float) -> None:
        import jax
        import jax.numpy as jnp

        if not hasattr(jax, "tree_map"):  # theirs is of before its removal
            jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
        from src.kernels import smile  # type: ignore[import-not-found]

        self.jax, self.jnp, self.many = jax, jnp, many
        #: A residual network fills a GPU alone.
        together = not any(isinstance(m, Residual) for m in many.network.modules())
        self.settings = (IMAGES if together else COLOURS) if many.y.ndim == 1 else TEXT
        self.x, self.y = (jnp.asarray(v.cpu().numpy()) for v in (many.x, many.y))
        parts = len(self.x) // self.settings.batch or 1

        def log_posterior(position: Any, x: Any, y: Any) -> Any:
            logits = jax.nn.log_softmax(forward(many.network, position, x, together=together))
            prior = sum(jnp.square(v).sum() for v in jax.tree.leaves(position))
            prior /= 2 * variance
            return parts * jnp.take_along_axis(logits, y[..., None], -1).sum() - prior

        class Together(getattr(smile, kernel)):  # type: ignore[misc]
            def _compile_sample_step(self, **given: Any) -> None:
                step = partial(self._sample_step, **given)
                if together:
                    self.one = jax.vmap(step, in_axes=(0, 0, 0, None))
                else:
                    self.one = lambda state, keys, rows, _: jax.lax.map(
                        lambda one: step(*one, 0.0), (state, keys, rows)
                    )

        self.kind = Together
        self.made = partial(
            Together, jax.value_and_grad(log_posterior), **self.settings.tuning[kernel],
            smoothing_factor=0.01, num_integration_steps=1,
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
            jax, rows = self.jax, min(self.settings.batch, len(self.x))

            def step(state: Any, key: Any) -> Any:
                which, own = jax.random.split(key)
                index = jax.random.randint(which, (len(sizes), rows), 0, len(self.x))
                keys = jax.random.split(own, len(sizes))
                return sampler.one(state, keys, (self.x[index], self.y[index]), 0.0), None

            @jax.jit
            def run(state: Any, key: Any) -> Any:
                return jax.lax.scan(step, state, jax.random.split(key, self.settings.thin))[0]

            self._run = run

    def go(self) -> Stack:
        """The weights after ``thin`` steps."""
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
    chains, total = Chains(kernel, many, seed, problem.prior), None
    grid = torch.tensor(chains.settings.grid)
    sizes = grid.repeat(-(-count // len(grid)))[:count]
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
