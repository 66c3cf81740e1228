"""``Collector``: keeps iterates of a training loop and returns them as a ``Posterior``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from natural_langevin._internal.chains import Params
from natural_langevin.optim import shards
from natural_langevin.optim.capture import remove_hooks
from natural_langevin.optim.labels import Loop
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.priors import Prior
from natural_langevin.run.collector import is_kept
from natural_langevin.run.kept_draws import check_kept, check_sample_dtype
from natural_langevin.run.loop import DivergenceError
from natural_langevin.run.problem.validation import whole_number
from natural_langevin.statistics import plain_copy, prepare_model


class Iterating(Loop, Protocol):
    """The interface of the optimizer (``NaturalLangevin``) whose iterates are kept."""

    model: nn.Module

    @property
    def prior(self) -> dict[str, Prior]:
        """By parameter."""

    def mean(self) -> Params:
        """The running mean."""

    def learned(self) -> dict[str, Tensor]:
        """The likelihood's own state."""

    def describe(self) -> dict[str, Any]:
        """Its settings."""

    def register_step_post_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Calls it after every step."""


class Collector:
    """Keeps iterates burn_in + thin, burn_in + 2 thin, ... of an optimizer, after its steps.

    Iterate k is the parameter after k updates. ``optimizer.step()`` calls the collector, so the
    loop need not; ``posterior()`` can be called at any time.

    ``keep=M`` holds at most M iterates: when there would be more, every second is dropped and
    ``thin`` doubles. ``store``: "device", or "cpu" for the machine's memory. ``sample_dtype``:
    torch.bfloat16 (or float16) halves the memory of a float32 iterate.
    """

    def __init__(
        self,
        optimizer: Iterating,
        *,
        burn_in: int = 0,
        thin: int = 1,
        keep: int | None = None,
        store: str = "device",
        sample_dtype: torch.dtype | None = None,
    ) -> None:
        self.burn_in, self.thin = check_kept(burn_in, thin)
        if keep is not None and whole_number("keep", keep) < 1:
            raise ValueError(f"keep must be a positive integer or None, got {keep!r}")
        if store not in ("device", "cpu"):
            raise ValueError(f'store must be "device" or "cpu", got {store!r}')
        self._optimizer, self.keep, self._store = optimizer, keep, store
        first = next(iter(optimizer.sampled().values()))
        self._dtype = check_sample_dtype(sample_dtype, first.dtype)
        self._kept: dict[int, Params] = {}
        self._trace: list[tuple[int, float]] = []
        self._handle = optimizer.register_step_post_hook(lambda *_: self._after_step())

    def __len__(self) -> int:
        """How many iterates are held."""
        return len(self._kept)

    @property
    def kept(self) -> list[int]:
        """Which iterates are held."""
        return list(self._kept)

    def _after_step(self) -> None:
        """Does nothing while a CUDA graph is being recorded."""
        if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            self.update()

    def update(self, loss: Any = None) -> None:
        """Keeps the current iterate if it is due; called automatically after every step.

        Call it with the ``loss`` to record it in the posterior's trace."""
        step = self._optimizer.steps
        if loss is not None:
            self._trace.append((step, float(torch.as_tensor(loss).detach())))
        if not is_kept(step, self.burn_in, self.thin) or step in self._kept:
            return
        values = {}
        for name, p in self._optimizer.sampled().items():
            value = p.detach().clone().to(self._dtype)
            values[name] = value.cpu() if self._store == "cpu" else value
        self._refuse_infinite(values, step)
        self._kept[step] = values
        while self.keep is not None and len(self._kept) > self.keep:
            self.thin *= 2
            self._kept = {
                k: v for k, v in self._kept.items() if is_kept(k, self.burn_in, self.thin)
            }

    def _refuse_infinite(self, values: Params, step: int) -> None:
        sums = torch.stack([shards.whole(v.float().sum()).cpu() for v in values.values()])
        if not bool(torch.isfinite(sums).all()):
            bad = list(values)[int((~torch.isfinite(sums)).nonzero()[0])]
            raise DivergenceError(
                f"parameter {bad!r} is not finite after step {step} (or does not fit "
                f"{self._dtype}): this iterate is not kept. The step size is most likely too "
                "large: try a tenth of it"
            )

    def posterior(self, model: nn.Module | None = None) -> Posterior:
        """The iterates kept so far, their running mean and the last one, as one chain.

        A sharded network cannot be copied: give a ``model`` of the same kind that is not sharded.
        Its parameters are then gathered on every rank, all of which must call this."""
        optimizer = self._optimizer
        if not self._kept:
            raise ValueError(
                f"no iterate has been kept after {optimizer.steps} steps: burn_in={self.burn_in} "
                f"and thin={self.thin} keep the first one after {self.burn_in + self.thin}"
            )
        sharded = shards.any_sharded(optimizer.sampled().values())
        if sharded and model is None:
            raise ValueError(
                "the network is sharded: give posterior(model) a network of the same kind that is "
                "not, small enough for one rank"
            )
        model = plain_copy(optimizer.model if model is None else model).eval()
        remove_hooks(model)
        prepare_model(model)
        sampled = optimizer.sampled()
        last = {n: shards.whole(p.detach().clone())[None] for n, p in sampled.items()}
        kept = {n: [shards.whole(v[n]) for v in self._kept.values()] for n in sampled}
        finite = all(bool(torch.isfinite(p).all()) for p in last.values())
        posterior = Posterior(
            model=model,
            likelihood=optimizer.likelihood,
            samples={n: torch.stack(values)[None] for n, values in kept.items()},
            mean={n: shards.whole(m.clone())[None] for n, m in optimizer.mean().items()},
            last=last,
            diverged=torch.tensor([-1 if finite else optimizer.steps]),
            learned=optimizer.learned(),
            trace=torch.tensor(self._trace, dtype=torch.float64).reshape(-1, 2),
            config=optimizer.describe()
            | {"burn_in": self.burn_in, "thin": self.thin, "sample_dtype": str(self._dtype)},
        )
        posterior.prior = optimizer.prior
        return posterior

    def state_dict(self) -> dict[str, Any]:
        """Everything kept so far, to save beside the optimizer's state."""
        kept = {str(step): values for step, values in self._kept.items()}
        trace = torch.tensor(self._trace, dtype=torch.float64).reshape(-1, 2)
        return {"burn_in": self.burn_in, "thin": self.thin, "kept": kept, "trace": trace}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned."""
        names = set(self._optimizer.sampled())
        for values in state["kept"].values():
            if set(values) != names:
                raise ValueError(
                    f"these iterates are of other parameters, {sorted(values)}: load them into a "
                    f"collector of the optimizer they came from (this one has {sorted(names)})"
                )
        self.burn_in, self.thin = int(state["burn_in"]), int(state["thin"])
        self._kept = {int(step): dict(values) for step, values in state["kept"].items()}
        self._trace = [(int(step), loss) for step, loss in state["trace"].tolist()]

    def close(self) -> None:
        """Stops listening to the optimizer."""
        self._handle.remove()
