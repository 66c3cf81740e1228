"""What counts as a chain of linear layers is found by watching a call, not by types."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin.execution.kernels.native.trace import LayerSpec, trace


class Custom(nn.Module):
    """Parameters of one hidden layer, and a forward pass that is given."""

    def __init__(self, forward: Callable[[Custom, Tensor], Tensor]) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5))
        self.last, self.given = nn.Linear(5, 2), forward
        self.register_buffer("scale", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.given(self, x)


HIDDEN = LayerSpec("w", "b", "tanh")
LAST = LayerSpec("last.weight", "last.bias")

CHAINS: dict[str, Callable[[Custom, Tensor], Tensor]] = {
    "functional": lambda m, x: m.last(torch.tanh(F.linear(x, m.w, m.b))),
    "matrix products": lambda m, x: m.last((x @ m.w.T + m.b).tanh()),
    "transposed": lambda m, x: m.last(torch.tanh(m.b + torch.matmul(x, m.w.transpose(0, 1)))),
    "addmm": lambda m, x: m.last(torch.addmm(m.b, x, m.w.t()).tanh_()),
    "shapes": lambda m, x: m.last(
        F.linear(x.reshape(len(x), 2, 2).flatten(1), m.w, m.b).tanh().view(x.shape[0], -1)
    ),
    "dropout that does nothing": lambda m, x: m.last(
        F.dropout(torch.tanh(F.linear(x, m.w, m.b)), 0.5, training=False)
    ),
}

OTHERS: dict[str, Callable[[Custom, Tensor], Tensor]] = {
    "a skip connection": lambda m, x: m.last((h := F.linear(x, m.w, m.b)) + torch.tanh(h)),
    "a scaled weight": lambda m, x: m.last(F.linear(x, 2 * m.w, m.b)),
    "a scaled output": lambda m, x: 2 * m.last(F.linear(x, m.w, m.b)),
    "a factor": lambda m, x: m.last(F.linear(x, m.w, m.b) * m.scale),
    "dropout": lambda m, x: m.last(F.dropout(F.linear(x, m.w, m.b), 0.5, training=True)),
    "a layer used twice": lambda m, x: m.last(F.linear(F.linear(x, m.w)[:, :4], m.w, m.b)),
    "two activations": lambda m, x: m.last(torch.tanh(torch.relu(F.linear(x, m.w, m.b)))),
    "normalised inputs": lambda m, x: m.last(F.linear(x - x.mean(), m.w, m.b)),
    "a transposed batch": lambda m, x: m.last(F.linear(x[:4].t().reshape(4, 4), m.w, m.b)),
    "an activation first": lambda m, x: m.last(F.linear(torch.tanh(x), m.w, m.b)),
    "an ELU with scales": lambda m, x: m.last(F.elu_(F.linear(x, m.w, m.b), 1.0, 2.0)),
    "written into": lambda m, x: m.last(_first_column_zero(F.linear(x, m.w, m.b))),
}


def _first_column_zero(h: Tensor) -> Tensor:
    h[:, 0] = 0
    return h


def layers_of(model: nn.Module, x: Tensor) -> list[LayerSpec] | None:
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return trace(model, named, x)


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    assert layers_of(Custom(CHAINS[name]), torch.randn(6, 4)) == [HIDDEN, LAST]


@pytest.mark.parametrize("name", OTHERS)
def test_others(name: str) -> None:
    assert layers_of(Custom(OTHERS[name]), torch.randn(6, 4)) is None


def test_modules() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 3, bias=False), nn.LeakyReLU(0.3), nn.Dropout(0.5),
        nn.Linear(3, 3), nn.GELU(approximate="tanh"), nn.Linear(3, 1), nn.Softplus(beta=2),
    ).eval()  # fmt: skip
    assert layers_of(model, torch.randn(6, 2, 2)) == [
        LayerSpec("1.weight", None, "leaky_relu", (0.3, 0.0)),
        LayerSpec("4.weight", "4.bias", "gelu_tanh"),
        LayerSpec("6.weight", "6.bias", "softplus", (2.0, 20.0)),
    ]


@pytest.mark.parametrize(
    ("activation", "name", "parameters"),
    [
        (nn.ELU(0.5), "elu", (0.5, 1.0)),
        (nn.CELU(2.0, inplace=True), "elu", (2.0, 2.0)),
        (nn.SELU(), "selu", (0.0, 0.0)),
        (nn.Mish(), "mish", (0.0, 0.0)),
        (nn.ReLU6(), "hardtanh", (0.0, 6.0)),
        (nn.Hardtanh(-2.0, 3.0), "hardtanh", (-2.0, 3.0)),
        (nn.Hardtanh(), "hardtanh", (-1.0, 1.0)),
    ],
)
def test_activations_are_known_by_their_numbers(activation, name, parameters) -> None:
    model = nn.Sequential(nn.Linear(4, 3), activation, nn.Linear(3, 1))
    first, _ = layers_of(model, torch.randn(6, 4))
    assert first == LayerSpec("0.weight", "0.bias", name, parameters)


def test_a_subclass_counts_by_what_it_does() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Renamed(nn.Linear):
        pass

    assert layers_of(Doubled(4, 2), torch.randn(6, 4)) is None
    assert layers_of(Renamed(4, 2), torch.randn(6, 4)) == [LayerSpec("weight", "bias")]


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)),
        nn.Identity(),
    ],
)
def test_other_layers(model: nn.Module) -> None:
    assert layers_of(model, torch.randn(6, 4)) is None


def test_a_convolution_reads_patches() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 2, padding=1), nn.Flatten(), nn.Linear(10, 3))
    found = layers_of(model, torch.randn(6, 1, 4))
    assert found is not None
    assert [layer.kind for layer in found] == ["convolution", "linear"]
    places = found[0].places
    assert places is not None
    assert places.table.tolist() == [[4, 0], [0, 1], [1, 2], [2, 3], [3, 4]]  # 4: none


def test_positions_share_their_weights() -> None:
    assert layers_of(nn.Linear(4, 2), torch.randn(6, 3, 4)) is None
