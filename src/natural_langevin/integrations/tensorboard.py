"""TensorBoard: a run as curves while it is under way.

sampler.sample(data, callback=TensorBoard("runs/first"))
"""

from __future__ import annotations

import os
from typing import Any

from natural_langevin.run.look import Look


class TensorBoard:
    """A callback for ``Langevin.sample`` that writes what it sees to a folder for TensorBoard.

    Written are every chain's ``loss`` and, where there is one, its ``acceptance``, their number of
    kept draws, and at every ``temperature_every``-th look the kinetic ``temperature``, which costs
    some dozen steps (0: never). Needs the package tensorboard."""

    def __init__(self, folder: str | os.PathLike[str], *, temperature_every: int = 10) -> None:
        if temperature_every < 0:
            raise ValueError(f"temperature_every must be 0 or more, got {temperature_every!r}")
        self._writer: Any = _summary_writer()(os.fspath(folder))
        self._every, self._looks = temperature_every, 0

    def __call__(self, look: Look) -> None:
        chains = {"loss": look.loss, "acceptance": look.acceptance}
        for name, values in chains.items():
            for chain, value in enumerate([] if values is None else values.tolist()):
                self._writer.add_scalar(f"{name}/chain {chain}", value, look.step)
        self._writer.add_scalar("kept", look.kept, look.step)
        self._looks += 1
        if self._every and self._looks % self._every == 0 and look.temperature is not None:
            self._writer.add_scalar("temperature", look.temperature.value, look.step)
        if look.step >= look.steps:
            self.close()

    def close(self) -> None:
        """Writes out what is left; a run that comes to its end does so itself."""
        self._writer.flush()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "TensorBoard(...) needs the package tensorboard: pip install tensorboard. Without it, "
            "callback= takes any function of a Look"
        ) from error
    return SummaryWriter
