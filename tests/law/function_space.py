"""Two networks that are the same function in different coordinates, trained side by side."""

import copy
from functools import cache

import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, priors
from natural_langevin.preconditioners import Preconditioner

SAMPLES, INPUTS, HIDDEN, OUTPUTS = 200, 3, 2, 2
STEPS = 8

Data = tuple[Tensor, Tensor]


def data() -> Data:
    """Inputs in [0, 1] like images, two noisy binary labels."""
    g = torch.Generator().manual_seed(0)
    x = torch.rand(SAMPLES, INPUTS, generator=g, dtype=torch.float64)
    score = torch.stack([x[:, 0] - x[:, 1], x[:, 1] * x[:, 2] - 0.25], dim=1)
    y = torch.rand(SAMPLES, OUTPUTS, generator=g, dtype=torch.float64) < torch.sigmoid(6 * score)
    return x, y.double()


def network() -> nn.Sequential:
    """Hidden units far from linear, outputs not confident: the Fisher matrices are invertible."""
    g = torch.Generator().manual_seed(7)
    net = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Sigmoid(), nn.Linear(HIDDEN, OUTPUTS))
    for layer, std in ((net[0], 3.0), (net[2], 1.0)):
        nn.init.normal_(layer.weight, std=std, generator=g)
        nn.init.normal_(layer.bias, std=std, generator=g)
    return net.double()


#: x -> M x + c, as (M, c).
INPUT_CHANGES = {
    "rescaled": (torch.diag(torch.tensor([3.0, 0.2, -1.5])), torch.zeros(INPUTS)),
    "shifted": (torch.eye(INPUTS), torch.tensor([1.0, -2.0, 0.5])),
    "1 - x": (-torch.eye(INPUTS), torch.ones(INPUTS)),
    "affine": (torch.diag(torch.tensor([3.0, 0.2, 1.5])), torch.tensor([1.0, -2.0, 0.5])),
    "rotated": (
        torch.tensor([[2, -1, 2], [2, 2, -1], [-1, 2, 2]], dtype=torch.float64) / 3,
        torch.zeros(INPUTS),
    ),
    "mixed": (
        torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.5, -1.0], [0.0, 1.0, 1.0]]),
        torch.tensor([1.0, -2.0, 0.5]),
    ),
}


def with_inputs(net: nn.Sequential, matrix: Tensor, shift: Tensor) -> nn.Sequential:
    """The same function of M x + c: W' = W M^{-1}, b' = b - W' c."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        net[0].weight.copy_(net[0].weight @ torch.linalg.inv(matrix))
        net[0].bias.sub_(net[0].weight @ shift)
    return net


#: What the last layer gives, z -> Q z, undone by a fixed map behind it.
OUTPUT_CHANGES = {
    "outputs rescaled": torch.diag(torch.tensor([0.3, -2.0])),
    "outputs rotated": torch.tensor([[3, -4], [4, 3]], dtype=torch.float64) / 5,
    "outputs rotated and scaled": torch.tensor([[3.0, -4.0], [4.0, 3.0]]),
    "outputs mixed": torch.tensor([[1.0, 3.0], [0.5, -1.0]]),
}


class Fixed(nn.Module):
    """A linear map without parameters."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix.mT


def with_outputs(net: nn.Sequential, matrix: Tensor) -> nn.Sequential:
    """The same function with W' = Q W, b' = Q b in the last layer."""
    net = nn.Sequential(*copy.deepcopy(net), Fixed(torch.linalg.inv(matrix)))
    with torch.no_grad():
        net[2].weight.copy_(matrix @ net[2].weight)
        net[2].bias.copy_(matrix @ net[2].bias)
    return net


def sigmoid_as_tanh(net: nn.Sequential) -> nn.Sequential:
    """sigmoid(z) = (1 + tanh(z/2)) / 2: half the incoming and outgoing weights, a moved bias."""
    out = nn.Sequential(copy.deepcopy(net[0]), nn.Tanh(), copy.deepcopy(net[2]))
    with torch.no_grad():
        out[0].weight.div_(2)
        out[0].bias.div_(2)
        out[2].weight.div_(2)
        out[2].bias.add_(out[2].weight.sum(1))
    return out


def trajectory(
    net: nn.Module, data: Data, preconditioner: Preconditioner, eta: float,
    *, steps: int = STEPS, temperature: float = 0.0,
) -> Tensor:  # fmt: skip
    """Outputs on the data, the start included: (steps + 1, N, outputs). Full batch, flat prior."""
    sampler = Langevin(
        net, likelihoods.Bernoulli(), prior=priors.Flat(), preconditioner=preconditioner,
        step_size=eta, temperature=temperature, chains=1, num_data=SAMPLES,
    )  # fmt: skip
    state, outputs = sampler.init(), []
    for _ in range(steps + 1):
        params = {name: p[0] for name, p in state.params.items()}
        outputs.append(torch.func.functional_call(net, params, (data[0],)).detach())
        state, _ = sampler.step(state, data)
    assert int(state.diverged) == -1
    return torch.stack(outputs)


@cache
def reference(preconditioner: Preconditioner, eta: float, temperature: float) -> Tensor:
    return trajectory(network(), data(), preconditioner, eta, temperature=temperature)


def discrepancy(one: Tensor, other: Tensor) -> float:
    """Largest distance between outputs along the way, relative to their largest movement."""
    torch.testing.assert_close(one[0], other[0], rtol=1e-10, atol=1e-10)
    movement = float((one - one[0]).abs().max())
    assert movement > 0.3, "the network hardly moved"
    return float((one - other).abs().max()) / movement


def measure(
    change: str, preconditioner: Preconditioner, eta: float, temperature: float = 0.0
) -> float:
    """The discrepancy of the network and of its twin in the coordinates of ``change``."""
    net, (x, y) = network(), data()
    if change == "sigmoid to tanh":
        net = sigmoid_as_tanh(net)
    elif change in OUTPUT_CHANGES:
        net = with_outputs(net, OUTPUT_CHANGES[change].double())
    else:
        matrix, shift = (t.double() for t in INPUT_CHANGES[change])
        net, x = with_inputs(net, matrix, shift), x @ matrix.mT + shift
    other = trajectory(net, (x, y), preconditioner, eta, temperature=temperature)
    return discrepancy(reference(preconditioner, eta, temperature), other)
