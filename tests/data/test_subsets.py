"""Chains that see their own rows of the data."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from natural_langevin import Langevin, dynamics, likelihoods, models, preconditioners, priors
from natural_langevin.data.streams import InMemory, Subsets

X = torch.arange(12.0, dtype=torch.float64)[:, None].expand(12, 2) / 12
Y = torch.arange(12) % 3
ROWS = torch.tensor([[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11], [0, 1, 2, 3, 4, 5]])


def test_an_epoch_holds_a_chains_own_rows_once_each():
    stream = InMemory(
        X, Y, batch_size=3, chain=torch.arange(3), seed=0, device=torch.device("cpu"), rows=ROWS
    )
    assert (stream.num_data, stream.batches_per_epoch) == (6, 2)
    for epoch in range(3):
        seen = torch.cat([stream.batch(2 * epoch + k)[0] for k in range(2)], dim=1)[..., 0] * 12
        assert_close(seen.sort(1).values, ROWS.double())


def sampler(chains: int) -> Langevin:
    torch.manual_seed(0)
    return Langevin(
        models.mlp(2, 3, (4,)).double(),
        likelihoods.Categorical(),
        prior=priors.Gaussian(1.0),
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=0.1),
        step_size=0.05,
        chains=chains,
        init="fan_in",
        seed=3,
        compile=False,
    )


def test_a_chain_samples_the_posterior_of_its_own_rows():
    """Chain 0 of three folds is the only chain of a run on fold 0's rows alone."""
    folds = sampler(3).sample(Subsets(X, Y, ROWS), 20, batch_size=3, progress=False)
    alone = sampler(1).sample((X[ROWS[0]], Y[ROWS[0]]), 20, batch_size=3, progress=False)
    assert folds.config["num_data"] == 6
    for name, samples in alone.samples.items():
        assert_close(folds.samples[name][:1], samples, rtol=1e-10, atol=1e-12)


def test_other_rows_are_other_data(tmp_path):
    """A checkpoint of other folds is not gone on with."""
    sampler(3).sample(
        Subsets(X, Y, ROWS), 6, batch_size=3, checkpoint=tmp_path / "run", progress=False
    )
    with pytest.raises(ValueError, match="data"):
        sampler(3).sample(
            Subsets(X, Y, ROWS.flip(0)), 6, batch_size=3, checkpoint=tmp_path / "run",
            progress=False,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.arange(6), r"integers, \(chain, n\), got torch.int64 of shape \(6,\)"),
        (ROWS.double(), "integers, .*got torch.float64"),
        (ROWS > 3, "use mask.nonzero"),
        (ROWS + 1, "between 0 and 11, got 1 to 12"),
    ],
)
def test_wrong_rows_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        Subsets(X, Y, rows)


@pytest.mark.parametrize("chains", [2, 4])
def test_every_chain_needs_a_line_of_rows(chains):
    with pytest.raises(ValueError, match=f"a line for every chain: {chains} chains, 3 lines"):
        sampler(chains).sample(Subsets(X, Y, ROWS), 2, batch_size=3, progress=False)


def test_other_lengths_of_x_and_y_are_refused():
    with pytest.raises(ValueError, match="one length, got 12 and 11"):
        Subsets(X, Y[1:], ROWS)


def test_a_pilot_cannot_hold_out_what_chains_do_not_share():
    automatic = Langevin(
        models.mlp(2, 3, (4,)),
        likelihoods.Categorical(),
        chains=3,
        step_size="auto",
        dynamics=dynamics.Overdamped(),
    )
    with pytest.raises(ValueError, match="one step size per chain"):
        automatic.sample(Subsets(X.float(), Y, ROWS), 20, batch_size=3, progress=False)
