"""Weights & Biases without a network, and MLflow's files: a real run in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import small_run
from natural_langevin import Posterior
from natural_langevin.integrations.mlflow import MLflow
from natural_langevin.integrations.wandb import WeightsAndBiases
from small_run import assert_same, network

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours


def tracked(callback: Any) -> Posterior:
    return small_run.sample(120, callback=callback)


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    logged: list[Any] = []
    with wandb.init(project="test", mode="offline", dir=tmp_path) as run:
        track = WeightsAndBiases(run, temperature_every=2)
        posterior = tracked(track)
        log_artifact = run.log_artifact
        monkeypatch.setattr(run, "log_artifact", lambda a: logged.append(log_artifact(a)))
        track.posterior(posterior)
        summary, config = dict(run.summary), dict(run.config)
    assert {"loss/chain 0", "loss/chain 1", "kept", "temperature"} <= set(summary)
    assert config["plan"]["steps"] == 120
    assert {Path(name).suffix for name in logged[0].manifest.entries} == {".json", ".safetensors"}
    assert len([*tmp_path.glob("wandb/offline-run-*/*.wandb")]) == 1


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(TypeError, match=r"what wandb\.init\(\.\.\.\) returns, got 'mine'"):
        WeightsAndBiases("mine")


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with pytest.raises(RuntimeError, match="no active run"):
        MLflow()
    with mlflow.start_run() as run:
        track = MLflow(temperature_every=2)
        posterior = tracked(track)
        track.posterior(posterior)
    client = mlflow.tracking.MlflowClient()
    steps = [m.step for m in client.get_metric_history(run.info.run_id, "loss/chain 1")]
    assert steps == [50, 100, 120]
    found = client.get_run(run.info.run_id).data
    assert found.metrics["kept"] == posterior.draws
    assert found.params["steps"] == "120"
    folder = mlflow.artifacts.download_artifacts(
        run_id=run.info.run_id, artifact_path="posterior", dst_path=str(tmp_path)
    )
    assert_same(posterior, Posterior.load(folder, network()))
