"""``natural-langevin sbc``: calibration of the sampler on data simulated from its prior."""

from __future__ import annotations

import typer

from natural_langevin.cli.errors import UsageError, check_positive, one_line_errors
from natural_langevin.preconditioners import REGISTRY as METRICS


def sbc(
    metric: str = typer.Option("quasi-diagonal", help=f"{', '.join(METRICS)}."),
    likelihood: str = typer.Option("gaussian", help="gaussian, bernoulli or poisson."),
    step_size: float = typer.Option(0.05, help="Step size of the sampler."),
    inputs: int = typer.Option(2, min=1, help="Number of inputs."),
    hidden: int = typer.Option(0, min=0, help="Hidden tanh units; 0 is a linear model."),
    rows: int = typer.Option(40, min=1, help="Number of rows of each simulated dataset."),
    batch_size: int = typer.Option(0, min=0, help="Rows of a minibatch [default: all]."),
    simulations: int = typer.Option(
        200, min=1, help="Number of simulated datasets; each is a chain."
    ),
    draws: int = typer.Option(15, min=1, help="Posterior draws among which the truth is ranked."),
    burn_in: int = typer.Option(200, min=0, help="Steps before the first draw."),
    thin: int = typer.Option(
        50, min=1, help="Steps between draws: enough to make them independent."
    ),
    seed: int = typer.Option(0, min=0, help="Random seed."),
) -> None:
    """Simulation-based calibration: ranks of the truth among posterior draws must be uniform.

    Weights are drawn from the prior, data from the model at those weights, and a chain is run on
    each data set. Exits with 1 where the ranks are not uniform.

    Example (about a minute):

        natural-langevin sbc --metric diagonal --simulations 100
    """
    import torch
    from torch import nn

    from natural_langevin import likelihoods, priors
    from natural_langevin.cli.experiments.sbc import calibrate

    kinds = {
        "gaussian": likelihoods.Gaussian(sigma=0.5),
        "bernoulli": likelihoods.Bernoulli(),
        "poisson": likelihoods.Poisson(),
    }
    with one_line_errors():
        if metric not in METRICS or likelihood not in kinds:
            raise UsageError(
                f"--metric must be one of {', '.join(METRICS)} and --likelihood one of "
                f"{', '.join(kinds)}, got {metric!r} and {likelihood!r}"
            )
        check_positive("--step-size", step_size)
        if batch_size > rows:
            raise UsageError(
                f"--batch-size is {batch_size}, and there are {rows} rows: use more --rows"
            )
        layers = [nn.Linear(inputs, hidden), nn.Tanh()] if hidden else []
        generator = torch.Generator().manual_seed(seed)
        found = calibrate(
            nn.Sequential(*layers, nn.Linear(hidden or inputs, 1)),
            kinds[likelihood],
            torch.randn(rows, inputs, generator=generator),
            simulations=simulations, draws=draws, burn_in=burn_in, thin=thin,
            batch_size=batch_size or None, seed=seed, prior=priors.Gaussian(0.5),
            preconditioner=METRICS[metric](), step_size=step_size,
        )  # fmt: skip
    typer.echo(str(found))
    raise typer.Exit(0 if found.passed else 1)
