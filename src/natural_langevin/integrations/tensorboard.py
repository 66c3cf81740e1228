"""TensorBoard: a run as curves while it is under way.

sampler.sample(data, callback=TensorBoard("runs/first"))
"""

from __future__ import annotations

import os
from typing import Any

from natural_langevin.run.look import Look, Scalars


class TensorBoard:
    """A callback for ``Langevin.sample`` that writes what it sees to a folder for TensorBoard: the
    numbers of ``Scalars``, which explains ``temperature_every``. Needs the package tensorboard."""

    def __init__(self, folder: str | os.PathLike[str], *, temperature_every: int = 10) -> None:
        self._scalars = Scalars(temperature_every)
        self._writer: Any = _summary_writer()(os.fspath(folder))

    def __call__(self, look: Look) -> None:
        for name, value in self._scalars(look).items():
            self._writer.add_scalar(name, value, look.step)
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
