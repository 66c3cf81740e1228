"""What to do next: arguments that exist and that the run has not used already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Advice:
    """Advice from a run's ``posterior.config``; general if that is empty."""

    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def _plan(self) -> Mapping[str, Any]:
        return self.run.get("plan") or {}

    @property
    def _noisy(self) -> bool:
        """Whether minibatch noise limits the step size, rather than a slow direction."""
        found = self._plan.get("measured") or {}
        if not found.get("relaxation") or found["heat"] < 0.01:
            return False
        return float(found["curvature"]) < 10 * float(found["slowest"])

    def longer(self) -> str:
        """What to do about chains that have not mixed."""
        if self._noisy:
            return f"minibatch noise allows only small steps: {self.larger_batch()}"
        steps, missed = self.run.get("steps"), self.run.get("limit") in ("steps", "seconds")
        if "until" in self.run and missed:
            return f"raise the limit that ended the run ({self.run['limit']}=), at least threefold"
        if steps is None:
            return "run longer"
        if "optimizer" in self.run:
            return f"run the loop longer, {3 * steps} steps"
        if "until" in self.run:
            return f"run longer, steps={3 * steps}, or until= with a larger target"
        return f'run longer, steps={3 * steps} or until="ess:400"'

    def faster(self) -> str:
        """What to do about draws that are correlated: a longer run, or larger steps."""
        if self._plan.get("step_size") is not None:
            return self.longer()
        if "optimizer" in self.run:
            return f"{self.longer()}, or take lr from Langevin(...).plan(data).step_size"
        return f"{self.longer()}, or leave step_size out, so that it is chosen"

    def smaller(self) -> str:
        """What to do about a step that is too large, with the number to use where it is known."""
        eta = self._plan.get("step_size")
        if eta is None:
            return "use a smaller step size"
        if isinstance(eta, float):
            return f"give step_size={eta / 4:.2g}, a quarter of what was chosen"
        return "give step_size= a quarter of posterior.plan.step_size"

    def larger_batch(self) -> str:
        """What to do about gradients that are too noisy."""
        size, rows = self.run.get("batch_size"), self.run.get("num_data")
        if size is None or rows is None:
            return "a larger batch"
        if size >= rows:
            return "nothing else: the batch is all of the data"
        return f"batch_size={int(min(4 * size, rows))}"
