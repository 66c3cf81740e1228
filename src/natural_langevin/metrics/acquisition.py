"""Active learning: which inputs to label next, by the information of their labels about the
weights.

For networks s with class probabilities p_s, the mutual information of the labels y_1..y_m and the
weights is

    I(y_1..y_m; w) = H(y_1..y_m) - sum_i mean_s H_s(y_i)

BALD takes the largest of single inputs, and so may take near copies, whose labels are redundant;
BatchBALD (Kirsch et al. 2019) adds one input after the other by the joint information, which is
submodular: this is within 1 - 1/e of the best batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Combinations of labels up to which a joint entropy is exact; beyond, as many are drawn.
EXACT = 1_000
#: Numbers of one product that are in memory at once.
_AT_ONCE = 1 << 20


def bald(samples: Tensor) -> Tensor:
    """I(y; w) of every input, (B,) in nats and float64, from probabilities (network, B, classes).

    >>> bald(torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])).round(decimals=4)
    tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    p = _checked(samples)
    return _entropy(p.mean(0)) - _entropy(p).mean(0)


def batch_bald(
    samples: Tensor, count: int, *, most: int = EXACT, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The inputs to label together: their numbers, (count,), in the order in which they were added,
    and I(y_1..y_m; w) after each, (count,) in nats.

    Args:
        samples: Class probabilities, (network, B, classes): ``posterior.predict(x).samples``.
        count: How many inputs, at most B.
        most: The largest number of label combinations for exact entropies; beyond, this many are
            drawn.
        seed: Seed of these draws.
    """
    p = _checked(samples)
    networks, inputs, classes = p.shape
    if not 1 <= count <= inputs:
        raise ValueError(f"count must be between 1 and the {inputs} inputs, got {count!r}")
    if most < classes:
        raise ValueError(f"most must be at least the number of classes, {classes}, got {most!r}")
    generator = torch.Generator().manual_seed(seed)
    own = _entropy(p).mean(0)  # (B,)
    taken: list[int] = []
    found: list[float] = []
    joint = p.new_ones(networks, 1)  # p_s of every combination of the labels so far
    exact, spent = True, 0.0
    for _ in range(count):
        total = _joint_entropies(joint, p, exact=exact)
        score = total - own - spent
        score[taken] = -torch.inf
        best = int(score.argmax())
        taken.append(best)
        found.append(float(score[best]))
        spent += float(own[best])
        exact = exact and joint.shape[1] * classes <= most
        if exact:
            joint = (joint[:, :, None] * p[:, None, best]).flatten(1)
        else:
            joint = _drawn(p[:, taken], most, generator)
    return torch.tensor(taken), torch.tensor(found, dtype=torch.float64)


def _joint_entropies(joint: Tensor, p: Tensor, *, exact: bool) -> Tensor:
    """H of the labels so far and one more, for every input: (B,). ``joint`` (network, combination):
    of all combinations, or of some that were drawn from their distribution."""
    networks, _, classes = p.shape
    size = max(1, _AT_ONCE // (joint.shape[1] * classes))
    before = joint.mean(0)[:, None, None]  # (combination, 1, 1)
    parts = []
    for some in p.split(size, dim=1):
        q = torch.einsum("sc,sbk->cbk", joint, some) / networks
        log = q.clamp_min(torch.finfo(q.dtype).tiny).log()
        weight = q if exact else q / before / len(before)
        parts.append(-(weight * log).sum((0, 2)))
    return torch.cat(parts)


def _drawn(p: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """p_s of combinations of labels, (network, combination), drawn from the mean over networks:
    of a network, every label by itself. ``p``: (network, m, classes) of the inputs taken."""
    networks, inputs, _ = p.shape
    who = torch.randint(networks, (count,), generator=generator)
    labels = torch.stack(
        [torch.multinomial(p[who, i], 1, generator=generator)[:, 0] for i in range(inputs)], 1
    )
    found = p.new_ones(networks, count)
    for i in range(inputs):
        found *= p[:, i, labels[:, i]]
    return found


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)


def _checked(samples: Tensor) -> Tensor:
    if samples.ndim != 3 or not bool(((samples >= 0) & (samples <= 1)).all()):
        raise ValueError(
            "samples must be class probabilities (network, input, class), such as "
            f"posterior.predict(x).samples, got a tensor of shape {tuple(samples.shape)}"
        )
    return samples.detach().double().cpu()
