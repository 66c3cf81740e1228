"""NUTS on the networks of ``sampler_problems``, and the reference draws held against it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.samplers.problems import SEED, inputs, predictions, problem, reference
from natural_langevin.diagnostics import mixing

ROOT = Path(__file__).resolve().parents[2]
#: Warm-up and draws of each of NUTS's chains.
NUTS_WARMUP, NUTS_DRAWS, NUTS_CHAINS = 500, 1000, 4


def nuts_file(name: str) -> Path:
    """Where NUTS's predictions are."""
    return ROOT / "results" / "nuts" / f"samplers-{name}.npz"


def run_nuts(name: str, folder: Path, only: int | None = None) -> None:
    """Predictions of NUTS at the same inputs, (chain, draw, input), under the same prior.

    ``only``: this chain alone, whose draws stay in ``folder``."""
    from lab.defaults import nuts_chains, small  # with blackjax

    case = problem(name)
    some = inputs(name)
    of = small.Problem(name, case.x, case.y, some, case.y, case.likelihood, lambda: case.network)
    variances = {k: 1.0 for k, _ in case.network.named_parameters()}
    chains, seconds = [], 0.0
    for k in range(NUTS_CHAINS) if only is None else (only,):  # one that was stopped goes on
        file = folder / f"nuts-{name}-{k}.npz"
        if not file.exists():
            began = time.perf_counter()
            drawn = nuts_chains.sample(
                of, variances, chains=1, warmup=NUTS_WARMUP, draws=NUTS_DRAWS, seed=SEED + k
            )
            np.savez_compressed(file, drawn=drawn, seconds=time.perf_counter() - began)
        with np.load(file) as stored:
            chains.append(torch.from_numpy(stored["drawn"]))
            seconds += float(stored["seconds"])
        print(file, f"{seconds:.0f} s so far", flush=True)
    if only is not None:
        return
    drawn = torch.cat(chains)
    drawn = drawn.softmax(-1)[..., 1] if name == "moons" else drawn[..., 0]
    np.savez_compressed(
        nuts_file(name), predictions=drawn.float().numpy(), seconds=seconds, warmup=NUTS_WARMUP,
    )  # fmt: skip
    print(name, tuple(drawn.shape), "rhat", float(mixing(drawn).rhat.max()))


def against_nuts(name: str) -> dict[str, Any]:
    """The Metropolis-adjusted reference against NUTS: distances beside what sampling explains.

    gap and spread as above, with NUTS's standard deviations. z: rms over inputs of the difference
    of means over its standard error, sqrt(s^2/e + s'^2/e') with effective sizes e of both; about 1
    where there is no other difference than chance."""
    ours = predictions(name, reference(name)["kept"])
    with np.load(nuts_file(name)) as stored:
        theirs, seconds = torch.from_numpy(stored["predictions"]), float(stored["seconds"])
    both = [(f.double().flatten(0, 1), mixing(f)) for f in (ours, theirs)]
    (f, of), (g, other) = both
    errors = [p.var(0) / torch.as_tensor(m.ess) for p, m in both]
    apart, sd = f.mean(0) - g.mean(0), g.std(0)
    return {
        "problem": name, "nuts_seconds": seconds,
        "gap": float((apart / sd).square().mean().sqrt()),
        "floor": float((sum(errors) / sd.square()).mean().sqrt()),
        "z": float((apart.square() / sum(errors)).mean().sqrt()),
        "spread": float((f.std(0) / sd).mean()) - 1,
        "spread_error": float((sum(errors) / sd.square() / 2).sqrt().mean()),
        "ess": float(np.median(of.ess)), "nuts_ess": float(np.median(other.ess)),
        "rhat": float(of.rhat.max()), "nuts_rhat": float(other.rhat.max()),
    }  # fmt: skip
