"""Log-losses of classes and their gradients, in one Triton kernel instead of nine launches.

loss_n = logsumexp(f_n) - f_n[y_n],        d loss_n / d f_n = softmax(f_n) - onehot(y_n)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Classes, and samples of a program, that fit into its registers; as many columns have all
#: networks of few classes: one kernel.
MOST_CLASSES, ROWS, COLUMNS = 256, 8, 16


@triton.jit(do_not_specialize=["samples", "classes"])
def _kernel(
    outputs, labels, gradient, losses, samples, classes, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, COLUMNS)
    in_n = n < samples
    inside = in_n[:, None] & (k < classes)[None, :]
    at = n[:, None] * classes + k[None, :]
    f = tl.load(outputs + at, mask=inside, other=float("-inf"))
    y = tl.load(labels + n, mask=in_n, other=0)
    shifted = f - tl.max(tl.where(in_n[:, None], f, 0.0), axis=1)[:, None]
    power = tl.where(inside, tl.exp(shifted), 0.0)
    total = tl.sum(power, axis=1)
    total = tl.where(in_n, total, 1.0)
    mine = (k[None, :] == y[:, None]) & inside
    log_p = tl.sum(tl.where(mine, shifted, 0.0), axis=1) - tl.log(total)
    tl.store(losses + n, -log_p, mask=in_n)
    tl.store(gradient + at, power / total[:, None] - mine.to(tl.float32), mask=inside)


def loss_and_gradient(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of float32 logits (B, K) and int64 labels (B,): gradient (B, K) and losses (B,)."""
    gradient, losses = torch.empty_like(outputs), outputs.new_empty(len(outputs))
    samples, classes = outputs.shape
    _kernel[(-(-samples // ROWS),)](
        outputs, y, gradient, losses, samples, classes,
        ROWS=ROWS, COLUMNS=max(COLUMNS, triton.next_power_of_2(classes)),
    )  # fmt: skip
    return gradient, losses


def build_usual(build: Callable[..., None]) -> None:
    """The kernel of few classes, compiled and not run: by ``gpu_build.build``."""
    f, y = torch.float32, torch.int64
    build(_kernel, (1,), f, y, f, f, 8, 3, ROWS=ROWS, COLUMNS=COLUMNS)
