"""Verdicts follow every output, beyond the rows too, parameters and noise; the worst one counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods
from natural_langevin.diagnostics import diagnose
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.diagnosis import probes

CHAINS, DRAWS = 4, 200


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def modes() -> Tensor:
    """A number whose chains sit in two modes, (chain, draw)."""
    return normal(CHAINS, DRAWS, seed=5) + 4 * torch.tensor([0.0, 0.0, 1.0, 1.0])[:, None]


def posterior(model: nn.Module, likelihood: Likelihood, samples: dict[str, Tensor], **options):
    last = {k: v[:, -1] for k, v in samples.items()}
    return Posterior(
        model=model.double(), likelihood=likelihood, samples=samples, mean=last, last=last,
        diverged=torch.full((CHAINS,), -1), config={"num_data": 500}, **options,
    )  # fmt: skip


def test_one_bad_number_among_hundreds_is_said_with_its_place() -> None:
    values = normal(CHAINS, DRAWS, 150, 2)
    assert diagnose(values, {}).verdicts == []
    values[:, :, 37, 1] = modes()
    found = diagnose(values, {}, inputs={"predictions": torch.arange(150.0)[:, None]})
    disagree, correlated = found.verdicts
    assert "most at predictions (input 37, x = [37.0], output 1), R-hat" in disagree
    assert "at predictions (input 37" in correlated


def test_a_parameter_that_was_asked_for_counts() -> None:
    values = normal(CHAINS, DRAWS, 3, 2)
    values[:, :, 2, 1] = modes()
    found = diagnose(normal(CHAINS, DRAWS, 5), {}, parameters={"weight": values})
    assert "most at weight[2, 1], R-hat" in found.verdicts[0]
    assert "At the inputs given they agree" in found.verdicts[0]


def test_the_noise_that_a_network_says_is_followed() -> None:
    """Means agree; the log variance, output 1, sits in two modes."""
    weight = torch.zeros(CHAINS, DRAWS, 2, 1, dtype=torch.float64)
    bias = normal(CHAINS, DRAWS, 2)
    bias[:, :, 1] = modes()
    found = posterior(
        nn.Linear(1, 2), likelihoods.HeteroscedasticGaussian(), {"weight": weight, "bias": bias}
    ).diagnose(normal(10, 1), beyond=False)
    assert "output 1), R-hat" in found.verdicts[0]
    assert found.rhat is not None
    assert len(found.rhat) == 20


def test_noise_that_chains_have_learned_is_compared() -> None:
    samples = {"weight": normal(CHAINS, DRAWS, 1, 1), "bias": normal(CHAINS, DRAWS, 1, seed=1)}
    said = []
    for variance in ([1.0, 1.02, 0.98, 1.01], [1.0, 1.0, 2.0, 2.0]):
        for likelihood, name in (
            (likelihoods.Gaussian("rmse"), "variance"),
            (likelihoods.StudentT(), "squared_scale"),
        ):
            learned = {name: torch.tensor(variance, dtype=torch.float64)}
            found = posterior(nn.Linear(1, 1), likelihood, samples, learned=learned)
            said.append([v for v in found.diagnose(normal(10, 1)).verdicts if "noise" in v])
    assert said[:2] == [[], []]
    assert all("noise levels, 1 to 1.41 (the data determine them to within 3%)" in v[0]
               for v in said[2:])  # fmt: skip


class Hinge(nn.Module):
    """b + a relu(x - 1.2): rows in [-1, 1] know nothing of a."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.b + self.a * (x - 1.2).relu()


def test_beyond_the_rows_is_looked_at_too() -> None:
    found = posterior(
        Hinge(), likelihoods.Gaussian(0.1), {"a": modes(), "b": normal(CHAINS, DRAWS)}
    )
    x = torch.linspace(-1, 1, 12, dtype=torch.float64)[:, None]
    assert found.diagnose(x, beyond=False).verdicts == []
    looked = found.diagnose(x)
    assert set(looked.beyond) == {"between rows", "outside", "corners"}
    assert "corners (input 1, x = [1.5], output 0), R-hat" in looked.verdicts[0]
    assert "between rows (" not in looked.verdicts[0]
    assert "At the inputs given they agree" in looked.verdicts[0]
    assert "Away from the data, corners: R-hat" in str(looked)


def test_probes_are_where_they_say() -> None:
    """A table of two numbers and a flag, by the definitions; the flag keeps its values."""
    x = torch.cat([normal(40, 2), (normal(40, 1, seed=3) > 0).double()], 1)
    found = probes(x)
    assert set(found) == {"between rows", "outside", "corners", "shuffled columns"}
    assert all(set(v[:, 2].tolist()) <= {0.0, 1.0} for v in found.values())
    low, high = x[:, :2].amin(0), x[:, :2].amax(0)
    corners = found["corners"][:, :2]
    assert corners.shape == (4, 2)
    torch.testing.assert_close(corners.amax(0), high + (high - low) / 4)
    torch.testing.assert_close(corners.amin(0), low - (high - low) / 4)
    between = found["between rows"][:, :2]
    assert bool(((between >= low) & (between <= high)).all())
    for column in (0, 1):
        assert set(found["shuffled columns"][:, column].tolist()) <= set(x[:, column].tolist())
    rows = (found["shuffled columns"][:, None, :2] == x[None, :, :2]).all(2)
    assert int(rows.sum()) <= 4  # of 16; as many as one by chance
    mean = x.mean(0)[:2]
    furthest = (((x[:, :2] - mean) / x[:, :2].std(0)).square().sum(1)).argmax()
    torch.testing.assert_close(found["outside"][0, :2], mean + 1.5 * (x[furthest, :2] - mean))


def test_inputs_that_are_no_rows_of_numbers_have_no_probes() -> None:
    assert probes(normal(5, 3, 2)) == {}  # images, sequences
    assert probes(torch.arange(12).reshape(6, 2)) == {}  # tokens
    assert probes((normal(20, 3) > 0).double()) == {}  # flags
    assert "corners" not in probes(normal(50, 40))


def test_numbers_that_an_embedding_looks_up_keep_to_those_seen() -> None:
    class Levels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(6, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.cat([self.table(x[:, 0].long()), x[:, 1:]], 1))

    torch.manual_seed(0)
    x = torch.stack([torch.arange(40.0) % 6, torch.randn(40)], 1)
    sampler = Langevin(Levels(), likelihoods.Categorical(), step_size=1e-3, chains=4)
    found = sampler.sample((x, (x[:, 1] > 0).long()), 20, batch_size=20, progress=False)
    assert "outside" in found.diagnose(x).beyond  # an index beyond the table would be an error
    moved = probes(x.double(), looked_up=True)["outside"]
    assert set(moved[:, 0].tolist()) <= set(range(6))
    assert moved[:, 1].abs().max() > x[:, 1].abs().max()


def test_chains_that_do_not_move_have_no_number_of_sixteen_digits() -> None:
    still = 1e10 * torch.arange(4.0, dtype=torch.float64)[:, None, None].expand(4, 20, 3) / 3
    text = str(diagnose(still, {}))
    assert "R-hat above 100" in text
    assert "inf" not in text
