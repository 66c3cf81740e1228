"""Recurrent layers: two linear maps at every time step, of the input and of the state before.

    gates_t = (W_ih x_t + b_ih, W_hh h_{t-1} + b_hh)

so G_n[W_ih] = sum_t delta_nt x_nt^T and G_n[W_hh] = sum_t delta'_nt h_n,t-1^T: a unit is one row of
a weight with its bias, and time steps are positions. An LSTM with ``proj_size`` has a third map,
without bias, from its cell to its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from natural_langevin.statistics.rules.base import Call, Outer, SampleGradient, Sum, positions
from natural_langevin.statistics.rules.rewritten import CallRecorder, RewrittenLayer, rewrites

State = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM: (B, H) each


def cell(mode: str, x: Tensor, h: Tensor, state: State) -> State:
    """The state after one step from both maps' outputs: x = W_ih x_t + b_ih, h = W_hh h + b_hh."""
    if mode == "LSTM":
        i, f, g, o = (x + h).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if mode == "GRU":
        (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, -1), h.chunk(3, -1)
        z = (x_z + h_z).sigmoid()
        n = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
        return ((1 - z) * n + z * state[0],)
    return ((x + h).relu() if mode == "RNN_RELU" else (x + h).tanh(),)


class _Recurrent(RewrittenLayer, nn.Module):
    """The forward pass of nn.RNN, nn.LSTM and nn.GRU. No subclass of these: torch.compile refuses
    whatever is one, without looking at what it computes."""

    extra_repr = nn.RNNBase.extra_repr

    def forward(self: Any, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        if isinstance(input, PackedSequence):
            raise TypeError(
                "packed sequences cannot be vectorised over chains: give padded sequences, and "
                "choose the outputs at each sequence's own length"
            )
        batched = input.ndim == 3
        x = input[None] if not batched else input if self.batch_first else input.transpose(0, 1)
        states = self._start(x, hx, batched)
        tap, last = CallRecorder(self), []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(1 + self.bidirectional):
                where = layer * (1 + self.bidirectional) + direction
                name = f"l{layer}" + ("_reverse" if direction else "")
                output, state = self._scan(tap, name, x, tuple(s[where] for s in states))
                outputs.append(output)
                last.append(state)
            x = torch.cat(outputs, dim=-1)
        tap.close()
        final = [torch.stack(parts) for parts in zip(*last, strict=True)]
        if not batched:
            x, final = x[0], [s[:, 0] for s in final]
        elif not self.batch_first:
            x = x.transpose(0, 1)
        return x, tuple(final) if self.mode == "LSTM" else final[0]

    def _start(self: Any, x: Tensor, hx: Any, batched: bool) -> list[Tensor]:
        """(layer and direction, B, H) of h, and of c in an LSTM."""
        if hx is not None:
            given = list(hx) if isinstance(hx, tuple | list) else [hx]
            return given if batched else [s[:, None] for s in given]
        count = self.num_layers * (1 + self.bidirectional)
        start = [x.new_zeros(count, x.shape[0], self.proj_size or self.hidden_size)]
        if self.mode == "LSTM":
            start.append(x.new_zeros(count, x.shape[0], self.hidden_size))
        return start

    def _scan(
        self: Any, tap: CallRecorder, name: str, x: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """One layer in one direction over x (B, T, I): the states h (B, T, H) and the last."""
        bias_x, bias_h = (getattr(self, f"bias_{k}_{name}", None) for k in ("ih", "hh"))
        gates = tap.add(x, F.linear(x, getattr(self, f"weight_ih_{name}"), bias_x))
        weight, epsilon = getattr(self, f"weight_hh_{name}"), _by_time(tap.epsilon())
        project = getattr(self, f"weight_hr_{name}", None)
        epsilon_r = _by_time(tap.epsilon()) if project is not None else None
        gates_at = gates.unbind(1)
        before, inner, states, times = [], [], [], range(x.shape[1])
        for t in reversed(times) if name.endswith("reverse") else times:
            h = F.linear(state[0], weight, bias_h)
            before.append(state[0])
            state = cell(self.mode, gates_at[t], h if epsilon is None else h + epsilon[t], state)
            if project is not None:
                inner.append(state[0])
                r = F.linear(state[0], project)
                state = (r if epsilon_r is None else r + epsilon_r[t], *state[1:])
            states.append(state[0])
        if name.endswith("reverse"):
            before, inner, states = before[::-1], inner[::-1], states[::-1]
        tap.put(torch.stack(before, 1), gates)
        output = torch.stack(states, 1)
        if project is not None:
            tap.put(torch.stack(inner, 1), output)
        return output, state


def _by_time(value: Tensor | None) -> tuple[Tensor, ...] | None:
    """(B, T, F) step by step: gradients come back by one stack, not by T sums of mostly zeros."""
    return None if value is None else value.unbind(1)


@rewrites(nn.RNN)
class RNN(_Recurrent): ...


@rewrites(nn.LSTM)
class LSTM(_Recurrent): ...


@rewrites(nn.GRU)
class GRU(_Recurrent): ...


def recurrent_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """Per-sample gradients of nn.RNN, GRU and LSTM: time steps are positions of linear maps."""
    found: dict[str, SampleGradient] = {}
    steps = iter(zip(call.inputs, call.deltas, strict=True))
    for layer in range(module.num_layers):
        for reverse in ("", "_reverse")[: 1 + module.bidirectional]:
            kinds = ("ih", "hh", "hr") if module.proj_size else ("ih", "hh")
            found |= _maps([(k, f"_l{layer}{reverse}") for k in kinds], steps)
    return found


def _maps(
    names: list[tuple[str, str]], steps: Iterator[tuple[Tensor, Tensor]]
) -> dict[str, SampleGradient]:
    found: dict[str, SampleGradient] = {}
    for (kind, place), (a, delta) in zip(names, steps, strict=False):
        a, delta = positions(a), positions(delta)
        found[f"weight_{kind}{place}"] = Outer(a, delta, (delta.shape[-1], a.shape[-1]))
        found[f"bias_{kind}{place}"] = Sum(delta)
    return found


# Cells: one step ----------------------------------------------------------------------------------


class _Cell(RewrittenLayer):
    """The forward pass of nn.RNNCell, nn.LSTMCell and nn.GRUCell."""

    mode = ""

    def forward(self: Any, input: Tensor, hx: Any = None) -> Any:
        mode = self.mode or f"RNN_{self.nonlinearity.upper()}"
        if hx is None:
            zeros = input.new_zeros(*input.shape[:-1], self.hidden_size)
            hx = (zeros, zeros) if mode == "LSTM" else zeros
        state = tuple(hx) if mode == "LSTM" else (hx,)
        tap = CallRecorder(self)
        x = tap.add(input, F.linear(input, self.weight_ih, self.bias_ih))
        h = tap.add(state[0], F.linear(state[0], self.weight_hh, self.bias_hh))
        tap.close()
        state = cell(mode, x, h, state)
        return state if mode == "LSTM" else state[0]


@rewrites(nn.RNNCell)
class RNNCell(_Cell, nn.RNNCell): ...


@rewrites(nn.LSTMCell)
class LSTMCell(_Cell, nn.LSTMCell):
    mode = "LSTM"


@rewrites(nn.GRUCell)
class GRUCell(_Cell, nn.GRUCell):
    mode = "GRU"


def cell_gradients(module: nn.Module, call: Call) -> dict[str, SampleGradient]:
    """The same of one step, for the cells."""
    return _maps([("ih", ""), ("hh", "")], iter(zip(call.inputs, call.deltas, strict=True)))
