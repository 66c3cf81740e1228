"""MLflow: a run as curves, its plan as parameters, its posterior among the artifacts.

with mlflow.start_run():
    track = MLflow()
    posterior = sampler.sample(data, callback=track)
    track.posterior(posterior)
"""

from __future__ import annotations

import tempfile
from typing import Any

from natural_langevin._internal.extras import needing
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.run.look import Look, Scalars


class MLflow:
    """A callback for ``Langevin.sample`` that logs the numbers of ``Scalars``, which explains
    ``temperature_every``, to the active run of MLflow."""

    def __init__(self, *, temperature_every: int = 10) -> None:
        with needing("MLflow() needs the package mlflow", "mlflow"):
            import mlflow
        self._mlflow: Any = mlflow
        if mlflow.active_run() is None:
            raise RuntimeError("there is no active run: make MLflow() within mlflow.start_run()")
        self._scalars = Scalars(temperature_every)

    def __call__(self, look: Look) -> None:
        self._mlflow.log_metrics(self._scalars(look), step=look.step)

    def posterior(self, posterior: Posterior, path: str = "posterior") -> None:
        """The plan's numbers and words as parameters, and the saved posterior as artifacts under
        ``path``; ``Posterior.load`` reads what ``mlflow.artifacts.download_artifacts`` fetches."""
        plan = {} if posterior.plan is None else posterior.plan.as_dict()
        plain = {k: v for k, v in plan.items() if isinstance(v, str | int | float)}
        self._mlflow.log_params(plain)
        with tempfile.TemporaryDirectory() as folder:
            posterior.save(folder)
            self._mlflow.log_artifacts(folder, path)
