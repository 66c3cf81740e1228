"""Where parts meet: strides and the fused step, threads and networks, precision and checks."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from natural_langevin import Langevin, Posterior, likelihoods, priors


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(1) > 1.5).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def posterior(**options: object) -> Posterior:
    sampler = Langevin(network(), likelihoods.Categorical(), step_size=1e-4, chains=2)
    return sampler.sample(data(), 60, batch_size=20, burn_in=20, thin=2, progress=False, **options)  # type: ignore[arg-type]


def test_a_transposed_weight_takes_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natural_langevin.execution.compiled.BACKEND", "eager")  # strides are ours
    model = network()
    torch.manual_seed(1)
    model[0].weight = nn.Parameter(torch.randn(3, 4).t())  # columns lie side by side
    ends = []
    for compile in (True, False):
        sampler = Langevin(
            model, likelihoods.Categorical(), step_size=1e-4, chains=2, compile=compile
        )
        engine, state = sampler.prepare(data(), steps=4, batch_size=20)
        state, _ = engine.run(state, 0, 2)
        assert int(state.step) == 2
        assert engine.way == ("native kernels, compiled" if compile else "eager")
        ends.append(state.params["0.weight"])
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def test_a_backend_that_breaks_off_leaves_no_half_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("the kernel broke off")

    sampler = Langevin(network(), likelihoods.Categorical(), step_size=1e-4, compile=True)
    engine, state = sampler.prepare(data(), steps=4, batch_size=20)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr("natural_langevin.execution.kernels.cpu_linear.update_", broken)
    monkeypatch.setattr("natural_langevin.execution.kernels.backend_for", backend_of_now)
    state, _ = engine.run(state, 0, 2)  # the first step is never compiled
    assert int(state.step) == 2
    assert "the kernel broke off" in caplog.text
    assert engine.way == "eager"


def backend_of_now(device: torch.device) -> object:
    from natural_langevin.execution.kernels import cpu_linear
    from natural_langevin.execution.kernels.layer import Backend

    return Backend("native", cpu_linear.update_, cpu_linear.arrange)


def test_threads_predict_what_one_thread_predicts() -> None:
    one = posterior()
    x, _ = data()
    expected = one.predict(x, sample_batch=4).mean
    checkpoint = torch.utils.checkpoint.CheckpointFunction
    wrong: list[object] = []

    def work() -> None:
        for _ in range(10):
            try:
                if not torch.equal(one.predict(x, sample_batch=4).mean, expected):
                    wrong.append("different")
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert torch.utils.checkpoint.CheckpointFunction is checkpoint


def test_samples_in_half_precision_can_be_diagnosed() -> None:
    x, y = data()
    half = posterior(sample_dtype=torch.bfloat16)
    found = half.diagnose(x[:5], data=(x, y), prior=priors.Gaussian(0.1))
    assert found.configurational is not None
    assert torch.isfinite(torch.tensor(found.configurational.temperature.value))
