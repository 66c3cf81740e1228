"""Threads and forks: predicting, saving and reading at once is safe; sampling is refused."""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import small_run
import warm
from natural_langevin import Posterior, random
from natural_langevin._internal import gpu_kernels


@pytest.fixture(scope="module")
def posterior():
    return small_run.sample()


def at_once(*actions: Callable[[], None], times: int = 20) -> list[str]:
    """Every action in a thread of its own, over and over; what was raised."""
    errors: list[str] = []
    begin = threading.Barrier(len(actions))

    def work(action: Callable[[], None]) -> None:
        begin.wait()
        try:
            for _ in range(times):
                action()
        except BaseException as error:
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_predicting_saving_and_reading_at_once(posterior, tmp_path):
    x, _ = small_run.data()
    expected, network = posterior.predict(x).mean, posterior.network(1, 3)(x)
    wrong: list[str] = []

    def predict() -> None:
        if not torch.equal(posterior.predict(x).mean, expected):
            wrong.append("a prediction")

    def read() -> None:
        if not torch.equal(posterior.network(1, 3)(x), network):
            wrong.append("a network")
        posterior.mean_network()

    def save() -> None:
        posterior.save(tmp_path / "saved")
        small_run.assert_same(posterior, Posterior.load(tmp_path / "saved", small_run.network()))

    assert at_once(predict, predict, read, save, save, times=10) == []
    assert wrong == []


def test_two_runs_of_one_sampler_at_once_do_not_know_of_each_other(posterior):
    sampler, data = small_run.sampler(), small_run.data()
    options = {"batch_size": 20, "burn_in": 4, "thin": 1, "progress": False}
    inside, leave, found = threading.Event(), threading.Event(), []
    chains = sampler.chain_ids

    class Slow(list):
        """Data whose first look waits until the other thread has tried."""

        def __iter__(self):
            inside.set()
            leave.wait(30)
            return super().__iter__()

    def first() -> None:
        found.append(sampler.sample(Slow(data), 12, **options))

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    # Every call has a network of its own: what others do to theirs does not show.
    small_run.assert_same(posterior, sampler.sample(data, 12, **options))
    assert not sampler.effective_temperature(data, steps=4).wrong
    leave.set()
    thread.join()
    small_run.assert_same(posterior, found[0])
    small_run.assert_same(posterior, sampler.sample(data, 12, **options))
    assert torch.equal(chains, sampler.chain_ids)


def test_a_run_asks_nothing_of_a_network_that_another_thread_uses(posterior, monkeypatch):
    """Its weights may be those of chains, inside of a vmap."""
    sampler = small_run.sampler()
    options = {"batch_size": 20, "burn_in": 4, "thin": 1, "progress": False}

    def used() -> None:
        pytest.fail("the network is in use")

    monkeypatch.setattr(sampler.problem.network, "trainable", used)
    monkeypatch.setattr(sampler._busy, "acquire", lambda: False)
    assert set(sampler.init().params) == set(posterior.samples)
    small_run.assert_same(posterior, sampler.sample(small_run.data(), 12, **options))


def test_samplers_of_their_own_work_at_once(posterior):
    found: list[Posterior] = []
    assert at_once(*[lambda: found.append(small_run.sample())] * 3, times=1) == []
    assert len(found) == 3
    for one in found:
        small_run.assert_same(posterior, one)


def test_a_trial_of_kernels_in_one_thread_does_not_change_the_numbers_of_another():
    """Its plain operations, which kernels are compared with, were everybody's: noise drawn at that
    moment had other last digits."""
    key = random.stream(random.origin(0, random.NOISE, torch.arange(2)), 5)
    expected, inside, leave = random.normal(key, 1 << 14), threading.Event(), threading.Event()

    def trial() -> None:
        with gpu_kernels.plain(), gpu_kernels.plain():
            inside.set()
            leave.wait(30)
        inside.clear()

    thread = threading.Thread(target=trial)
    thread.start()
    assert inside.wait(30)
    assert gpu_kernels.allowed()
    assert torch.equal(random.normal(key, 1 << 14), expected)
    with gpu_kernels.plain():
        assert not gpu_kernels.allowed()
    said: list[bool] = []
    _thread.start_new_thread(lambda: said.append(gpu_kernels.allowed()), ())  # as autograd's are
    while not said:
        time.sleep(0.001)
    assert said == [False]
    leave.set()
    thread.join()
    assert gpu_kernels.allowed()


FORK = """
import os, threading, time, torch
torch.set_num_threads(1)
import small_run
posterior, (x, _) = small_run.sample(), small_run.data()
expected, over = posterior.predict(x).mean, threading.Event()

def predict():
    while not over.is_set():
        posterior.predict(x)

thread = threading.Thread(target=predict)
thread.start()
statuses = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        same = torch.equal(posterior.predict(x).mean, expected)
        posterior.network(0, 0)
        os._exit(0 if same else 1)
    deadline = time.monotonic() + 60
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    if not ended:
        os.kill(child, 9)
        os.waitpid(child, 0)
    statuses.append(status if ended else "hangs")
over.set()
thread.join()
print(statuses)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_a_thread_predicts_predicts_too(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FORK)
    assert warm.run([script]).strip() == str([0] * 10)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_other_threads_are_torchs_own(reentrant: bool) -> None:
    """Inside a sampler's call they are passed by; elsewhere activations are computed again."""
    from torch.utils.checkpoint import checkpoint

    from natural_langevin.statistics.vectorised import vectorised

    def computed() -> int:
        count = []
        x = torch.ones(2, requires_grad=True)
        y = checkpoint(lambda t: count.append(1) or t**2, x, use_reentrant=reentrant)
        y.sum().backward()
        assert torch.equal(x.grad, 2 * torch.ones(2))
        return len(count)

    with vectorised(torch.ones(1)), vectorised(torch.ones(1)), ThreadPoolExecutor(1) as other:
        assert computed() == 1
        assert other.submit(computed).result() == 2
    assert computed() == 2
