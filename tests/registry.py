"""One registry of networks: every kind of layer, in the situations that networks put them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from natural_langevin import likelihoods
from natural_langevin.statistics import Evaluation, Gradients, Network, Params, prepare_model
from zoo import (
    Apply,
    Attend,
    Bags,
    BatchSecond,
    Block,
    Cells,
    Compact,
    Decoder,
    Doubled,
    Folded,
    Foreign,
    LearnedPositions,
    Menagerie,
    PositionTable,
    Queries,
    Recurrent,
    Shared,
    TiedHead,
    TiedLinear,
    TwoInputs,
    encoder,
    hooked,
    patched,
    pooled,
    scaled,
)


class Case(NamedTuple):
    """A network, the shape of one input (integers below ``tokens`` where given), and its route."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0
    #: parameters whose statistics come from a layer run again, or from the whole network
    replayed: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


CASES: dict[str, Case] = {
    "linear, two extra axes": Case(
        lambda: pooled(nn.Linear(3, 4), features=4, channels_first=False), (2, 5, 3)),
    "conv1d": Case(lambda: pooled(nn.Conv1d(2, 4, 3), features=4), (2, 7)),
    "conv1d circular": Case(
        lambda: pooled(
            nn.Conv1d(2, 4, 3, padding=2, padding_mode="circular", dilation=2), features=4),
        (2, 7)),
    "conv2d": Case(
        lambda: pooled(
            nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0)), nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 2, bias=False), features=4), (2, 5, 6)),
    "conv2d same, groups": Case(
        lambda: pooled(
            nn.Conv2d(4, 6, (3, 4), padding="same", dilation=(1, 2), groups=2), features=6),
        (4, 5, 6)),
    "conv2d reflect, depthwise": Case(
        lambda: pooled(
            nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect", groups=3), features=3),
        (3, 4, 5)),
    "conv2d one position": Case(lambda: pooled(nn.Conv2d(2, 4, 3), features=4), (2, 3, 3)),
    "conv3d": Case(
        lambda: pooled(
            nn.Conv3d(2, 4, 2, padding=1, padding_mode="replicate", stride=2), features=4),
        (2, 3, 4, 3)),
    "transposed 1d": Case(
        lambda: pooled(nn.ConvTranspose1d(2, 4, 3, stride=2, padding=1), features=4), (2, 5)),
    "transposed 2d": Case(
        lambda: pooled(
            nn.ConvTranspose2d(4, 6, (2, 3), stride=(2, 3), output_padding=(1, 2), groups=2,
                               dilation=(2, 1)), features=6), (4, 3, 2)),
    "transposed 3d": Case(
        lambda: pooled(nn.ConvTranspose3d(2, 2, 2, dilation=2, bias=False), features=2),
        (2, 2, 3, 2)),
    "embedding": Case(
        lambda: pooled(nn.Embedding(5, 4, padding_idx=1), features=4, channels_first=False),
        (6,), tokens=5),
    "embedding, one token": Case(
        lambda: nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3)), (), tokens=5),
    "learned positions": Case(LearnedPositions, (5,), tokens=7),
    "layer norm": Case(
        lambda: pooled(scaled(nn.LayerNorm((2, 3))), nn.LayerNorm(3, bias=False), features=3,
                       channels_first=False), (4, 2, 3)),
    "group norm": Case(
        lambda: pooled(nn.Conv1d(2, 4, 1), scaled(nn.GroupNorm(2, 4)), features=4), (2, 5)),
    "instance norm": Case(
        lambda: pooled(
            scaled(nn.InstanceNorm2d(3, affine=True)),
            scaled(nn.InstanceNorm2d(3, affine=True, track_running_stats=True)).eval(),
            features=3), (3, 4, 4)),
    "rms norm": Case(
        lambda: pooled(scaled(nn.RMSNorm(3)), features=3, channels_first=False), (4, 3)),
    "batch norm in eval mode": Case(
        lambda: pooled(
            nn.Conv2d(2, 4, 2), scaled(nn.BatchNorm2d(4)).eval(), features=4), (2, 4, 4)),
    "batch norm of features": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), scaled(nn.BatchNorm1d(4)).eval(), nn.Linear(4, 3)),
        (3,)),
    "prelu": Case(
        lambda: pooled(
            nn.Conv1d(2, 4, 2), scaled(nn.PReLU(4)), scaled(nn.PReLU()), features=4), (2, 5)),
    "prelu of features": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), scaled(nn.PReLU(4)), nn.Linear(4, 3)), (3,)),
    "bilinear": Case(TwoInputs, (3,)),
    "attention": Case(Attend, (4, 4)),
    "attention, time first": Case(lambda: Attend(time_first=True), (5, 4)),
    "attention, cross": Case(lambda: Attend(cross=True), (4, 4)),
    "attention, other widths": Case(lambda: Attend(cross=True, kdim=3, vdim=5), (3, 4)),
    "attention, extra key": Case(
        lambda: Attend(add_bias_kv=True, add_zero_attn=True, bias=False), (3, 4)),
    "causal block": Case(Block, (4, 4)),
    "transformer encoder": Case(encoder, (3, 4)),
    "transformer encoder, norm first": Case(
        lambda: encoder(norm_first=True, activation="gelu").eval(), (3, 4)),
    "transformer decoder": Case(Decoder, (4,), tokens=5),
    "rnn": Case(lambda: Recurrent(nn.RNN(3, 4, nonlinearity="relu"), 4), (5, 3)),
    "lstm": Case(
        lambda: Recurrent(nn.LSTM(3, 2, num_layers=2, bidirectional=True, batch_first=True), 4),
        (4, 3)),
    "lstm with projection": Case(
        lambda: Recurrent(nn.LSTM(3, 3, proj_size=2, bias=False, bidirectional=True), 4), (4, 3)),
    "gru": Case(lambda: Recurrent(nn.GRU(3, 4, num_layers=2, dropout=0.2), 4), (4, 3)),
    "rnn cell": Case(lambda: Cells(nn.RNNCell(3, 4)), (3, 3)),
    "lstm cell": Case(lambda: Cells(nn.LSTMCell(3, 4)), (3, 3)),
    "gru cell": Case(lambda: Cells(nn.GRUCell(3, 4)), (3, 3)),
    "embedding bag": Case(
        lambda: Bags(padding_idx=1), (4,), tokens=6, replayed=("bag.weight",)),
    "embedding bag, max": Case(
        lambda: Bags(mode="max"), (4,), tokens=6, replayed=("bag.weight",)),
    "parameters of a module": Case(
        lambda: pooled(PositionTable(), features=3, channels_first=False), (4, 3),
        replayed=("0.position", "0.gain")),
    "parameter without samples": Case(
        Queries, (3,), whole=("project.weight", "project.bias"), replayed=("query",)),
    "menagerie": Case(
        Menagerie, (3,), tokens=6, replayed=("position", "scale.weight", "scale.bias")),
    "compact": Case(Compact, (3,), tokens=6, replayed=("scale.weight", "scale.bias")),
    "tied head": Case(TiedHead, (5,), tokens=6),
    "tied head, functional": Case(
        lambda: TiedHead(functional=True), (5,), tokens=6, whole=("embed.weight",)),
    "tied linear": Case(TiedLinear, (3,)),
    "shared submodule": Case(Shared, (3,)),
    "batch second": Case(BatchSecond, (5, 3)),
    "folded": Case(Folded, (4, 2, 5)),
    "foreign layer": Case(Foreign, (4, 3), replayed=("scale.weight", "scale.bias")),
    "subclass": Case(
        lambda: nn.Sequential(Doubled(3, 4), nn.Tanh(), nn.Linear(4, 3)), (3,),
        replayed=("0.weight", "0.bias")),
    "user's hooks": Case(hooked, (3,)),
    "parametrized": Case(
        lambda: nn.Sequential(
            nn.utils.parametrize.register_parametrization(
                nn.Linear(3, 3), "weight", Apply(lambda w: w + w.T)), nn.Tanh(), nn.Linear(3, 3)),
        (3,), replayed=("0.bias",), whole=("0.parametrizations.weight.original",)),
    "patched": Case(patched, (3,), replayed=("0.weight", "0.bias")),
}  # fmt: skip


def make(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The named network, with the same weights every time and the global generator left alone.

    Its dropout is off, as the sampler would switch it off."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = CASES[name].build().to(dtype)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def batch(name: str, size: int, chains: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A batch for every chain: (chain, B, ...)."""
    case, generator = CASES[name], torch.Generator().manual_seed(size)
    shape = (chains, size, *case.shape)
    if case.tokens:
        x = torch.randint(0, case.tokens, shape, generator=generator)
    else:
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 3, (chains, size), generator=generator)


def evaluate(
    name: str,
    params: Params,
    x: Tensor,
    y: Tensor,
    *,
    sharing: str = "exact",
    backend: str | None = None,
) -> tuple[Evaluation, Gradients]:
    """Three chains with their own batches, or one chain whose batch has no chain axis."""
    dtype = next(iter(params.values())).dtype
    model = make(name, dtype)
    prepare_model(model)
    gradients = Gradients(
        Network(model), likelihoods.Categorical(), requests=("second", "cross"), sharing=sharing
    )
    chains = len(next(iter(params.values())))
    chain_axis = chains > 1
    gradients.prepare(params, x[0])
    data = (x, y) if chain_axis else (x[0], y[0])
    key, step = torch.zeros(chains, 2, dtype=torch.int32), torch.zeros((), dtype=torch.int64)
    run = gradients
    if backend is not None:
        run = torch.compile(gradients, fullgraph=True, dynamic=False, backend=backend)
    return run(params, {}, data, chain_axis=chain_axis, key=key, step=step), gradients
