"""Speed never changes the law: the exact posterior through the fast ways, in float32.

Noise and minibatches are the same draws as in double precision, so the fast chains must end where
the slow ones do, up to rounding; and then they must pass the same test against the exact law, which
``test_linear_regression`` holds against the closed-form posterior.
"""

from __future__ import annotations

import pytest
import torch
from gaussian_law import make_problem, run
from monte_carlo import assert_normal
from test_linear_regression import ADAPT, CASES, CHAINS, gaussian_prior

STEPS = 60
FAST = ["euclidean", "rmsprop", "qdop"]
#: ``compile`` -> the way that it takes.
WAYS = [(True, "native kernels, compiled"), ("auto", "native")]
THOROUGH = (pytest.mark.thorough,)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised inside inductor
@pytest.mark.parametrize(
    ("compile", "way", "case"),
    [
        # Compiling takes ten seconds. That a compiled run with these kernels ends where the eager
        # one does, whose law is proven here, is in tests/execution/test_fused_step.py.
        pytest.param(*way, case, marks=THOROUGH if way[0] is True else ())
        for way in WAYS
        for case in FAST
    ],
)
def test_the_fast_path_samples_the_posterior(compile: bool | str, way: str, case: str) -> None:
    preconditioner, eta = CASES[case]
    eta, batch_size = eta if case == "rmsprop" else eta / 2, 12  # as in test_posterior
    problem = make_problem()
    prior = gaussian_prior(problem)
    slow = problem.sampler(preconditioner(), prior, CHAINS, step_size=eta)
    theta, law = run(slow, problem, steps=STEPS, batch_size=batch_size, frozen_from=ADAPT)

    single = problem._replace(x=problem.x.float(), y=problem.y.float())
    fast = single.sampler(preconditioner(), prior, CHAINS, step_size=eta, compile=compile)
    engine, state = fast.prepare((single.x, single.y), steps=STEPS, batch_size=batch_size)
    state, _ = engine.run(state, 0, STEPS)
    assert engine.way == way
    ended = torch.cat([state.params["weight"].flatten(1), state.params["bias"]], dim=1).double()
    torch.testing.assert_close(ended, theta, rtol=0, atol=2e-3)  # 1 to 2 % of a posterior sd
    assert_normal(law.whiten(ended))
