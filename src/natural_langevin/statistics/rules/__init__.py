"""Rules: one file per family of layers. ``RULES`` is the one list that the capture reads.

Imports models, likelihoods; preconditioners and up import it.
"""

from __future__ import annotations

from torch import nn

from natural_langevin.likelihoods import OwnParameter
from natural_langevin.statistics.rules.attention import MultiheadAttention, attention_gradients
from natural_langevin.statistics.rules.base import (
    Call,
    Outer,
    Rule,
    SampleGradient,
    Scatter,
    Stacked,
    Sum,
    own_parameter_gradients,
    own_units,
    positions,
    row_units,
    use_native_sums,
)
from natural_langevin.statistics.rules.convolution import (
    convolution_gradients,
    no_units,
    transposed_gradients,
)
from natural_langevin.statistics.rules.embedding import Embedding, embedding_gradients
from natural_langevin.statistics.rules.linear import Bilinear, bilinear_gradients, linear_gradients
from natural_langevin.statistics.rules.normalisation import (
    CHANNEL_NORMS,
    GroupNorm,
    LayerNorm,
    RMSNorm,
    group_norm_gradients,
    layer_norm_gradients,
    rms_norm_gradients,
    running_norm_gradients,
)
from natural_langevin.statistics.rules.prelu import PReLU, prelu_gradients
from natural_langevin.statistics.rules.recurrent import (
    GRU,
    LSTM,
    RNN,
    GRUCell,
    LSTMCell,
    RNNCell,
    cell_gradients,
    recurrent_gradients,
)
from natural_langevin.statistics.rules.rewritten import (
    REWRITTEN,
    RewrittenLayer,
    restore_layers,
    rewrite_layers,
)

__all__ = [
    "RULES", "Call", "Outer", "Rule", "SampleGradient", "Scatter", "Stacked", "Sum",
    "own_units", "positions", "register_rule", "restore_layers", "rewrite_layers", "row_units",
    "use_native_sums",
]  # fmt: skip

#: By exact type: a subclass may compute something else.
RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(linear_gradients, row_units),
    nn.modules.linear.NonDynamicallyQuantizableLinear: Rule(linear_gradients, row_units),
    Bilinear: Rule(bilinear_gradients, row_units),
    **{
        c: Rule(convolution_gradients, row_units)
        for c in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    },
    **{
        c: Rule(transposed_gradients, no_units)
        for c in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    },
    **{c: Rule(embedding_gradients, own_units) for c in (nn.Embedding, Embedding)},
    LayerNorm: Rule(layer_norm_gradients, own_units),
    RMSNorm: Rule(rms_norm_gradients, own_units),
    GroupNorm: Rule(group_norm_gradients, own_units),
    **{c: Rule(running_norm_gradients, own_units) for c in CHANNEL_NORMS},
    PReLU: Rule(prelu_gradients, no_units),
    MultiheadAttention: Rule(attention_gradients, row_units),
    OwnParameter: Rule(own_parameter_gradients, own_units),
    **{c: Rule(recurrent_gradients, row_units) for c in (RNN, LSTM, GRU)},
    **{c: Rule(cell_gradients, row_units) for c in (RNNCell, LSTMCell, GRUCell)},
}  # fmt: skip


def register_rule(kind: type[nn.Module], rule: Rule) -> None:
    """Makes the Fisher metrics use ``rule`` for modules of exactly this type, from now on.

    The rule is checked against per-sample gradients before the first step of every run."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise TypeError(f"a rule belongs to a class of torch.nn.Module, got {kind!r}")
    if not isinstance(rule, Rule):
        raise TypeError(f"expected Rule(gradients, units), got {rule!r}")
    kind = REWRITTEN.get(kind, kind)
    if issubclass(kind, RewrittenLayer):
        raise TypeError(f"{kind.__name__} is taken apart into its inner maps, which have a rule")
    RULES[kind] = rule
