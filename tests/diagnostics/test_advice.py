"""Advice names arguments that exist, and never what has been done; two questions, two answers."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

import small_run
from natural_langevin import Langevin, likelihoods
from natural_langevin.diagnostics import Advice, Kinetic

RECIPE = {"plan": {"step_size": 0.02}, "steps": 2000, "limit": "steps"}


@pytest.mark.parametrize(
    "run",
    [
        {},
        RECIPE,
        RECIPE | {"until": "ess:400"},
        RECIPE | {"until": "ess:400", "limit": "ess"},
        {"plan": {"step_size": [0.02]}, "steps": 100, "batch_size": 10, "num_data": 60},
        {"steps": 100, "limit": "seconds", "batch_size": 60, "num_data": 60},
    ],
)
def test_every_argument_that_is_named_exists(run: dict[str, object]) -> None:
    advice = Advice(run)
    texts = [advice.longer(), advice.faster(), advice.smaller(), advice.larger_batch()]
    known = {
        *inspect.signature(Langevin).parameters,
        *inspect.signature(Langevin.sample).parameters,
    }
    assert set(re.findall(r"(\w+)=", " ".join(texts))) <= known


def test_what_was_done_is_not_advised() -> None:
    auto = Advice(RECIPE)
    assert "chosen" not in auto.faster()
    assert "step_size=0.005" in auto.smaller()
    assert "leave step_size out" in Advice({"steps": 100}).faster()
    missed = Advice(RECIPE | {"until": "ess:400"})
    assert "until=" not in missed.longer()
    assert "(steps=)" in missed.longer()
    assert Advice({"batch_size": 100, "num_data": 250}).larger_batch() == "batch_size=250"
    assert "all of the data" in Advice({"batch_size": 60, "num_data": 60}).larger_batch()


def test_a_step_size_given_beside_the_recipe_can_be_diagnosed() -> None:
    x, y = small_run.data()
    network, likelihood = small_run.network(), likelihoods.Categorical()
    sampler = Langevin(network, likelihood, chains=2, recipe="auto", step_size=1e-3)
    posterior = sampler.sample((x, y), steps=40, batch_size=20, progress=False)
    assert posterior.plan.step_size is None
    measured = Kinetic(None, None, None, {}, minibatch=0.4, cold=None, lost=0.0)
    posterior.config["effective_temperature"] = dataclasses.asdict(measured)
    found = posterior.diagnose(x)
    assert "leave step_size out" in found.advice.faster()
    assert found.advice.smaller() == "use a smaller step size"


def test_convergence_and_usability_are_two_answers() -> None:
    x, y = small_run.data()
    posterior = small_run.sample(40, burn_in=10)  # far too short
    found = posterior.diagnose(x, held_out=(x, y))
    assert found.verdicts
    assert found.usable is (not found.scores.verdicts)
    text = str(found)
    assert text.startswith("Convergence of ")
    assert "Are the predictions usable?" in text
    assert f"steps={3 * 40}" in text
    assert posterior.diagnose(x).usable is None


def test_the_noise_of_minibatches_is_named_where_it_makes_steps_small() -> None:
    slow = {"relaxation": 2e3, "heat": 0.04, "curvature": 1.1, "slowest": 0.9}
    plan = {"step_size": 4e-7, "measured": slow}
    run = {"plan": plan, "steps": 2000, "limit": "steps", "batch_size": 500, "num_data": 10**6}
    assert Advice(run).longer().endswith("only small steps: batch_size=2000")
    # A direction that is slow by itself.
    steep = run | {"plan": plan | {"measured": slow | {"slowest": 1e-3}}}
    assert "steps=6000" in Advice(steep).longer()


def test_a_loop_is_not_told_arguments_of_sample() -> None:
    advice = Advice({"optimizer": "NaturalLangevin", "steps": 100, "num_data": 60})
    assert advice.faster().startswith("run the loop longer, 300 steps, or take lr from")
    assert "=" not in advice.faster()
