"""Weights & Biases: a run as curves, its plan as configuration, its posterior as an artifact.

with wandb.init(project="mine") as run:
    track = WeightsAndBiases(run)
    posterior = sampler.sample(data, callback=track)
    track.posterior(posterior)
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from natural_langevin.posterior.posterior import Posterior
from natural_langevin.run.look import Look, Scalars

if TYPE_CHECKING:
    import wandb


class WeightsAndBiases:
    """A callback for ``Langevin.sample`` that logs the numbers of ``Scalars``, which explains
    ``temperature_every``, to a ``run`` that ``wandb.init`` has returned."""

    def __init__(self, run: wandb.Run, *, temperature_every: int = 10) -> None:
        if not callable(getattr(run, "log_artifact", None)):
            raise TypeError(f"run must be what wandb.init(...) returns, got {run!r:.80}")
        self._run, self._scalars = run, Scalars(temperature_every)

    def __call__(self, look: Look) -> None:
        self._run.log(self._scalars(look), step=look.step)

    def posterior(self, posterior: Posterior, name: str = "posterior") -> None:
        """The plan as the run's configuration, and the saved posterior as an artifact, which
        ``Posterior.load`` reads from the folder that ``artifact.download()`` returns."""
        import wandb

        if posterior.plan is not None:
            self._run.config.update({"plan": posterior.plan.as_dict()})
        artifact = wandb.Artifact(name, type="posterior", description=repr(posterior))
        with tempfile.TemporaryDirectory() as folder:
            posterior.save(folder)
            artifact.add_dir(folder)  # copied at once
            self._run.log_artifact(artifact)
