"""Trees of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def copy_tree_(into: Any, values: Any) -> None:
    """Overwrites the tensors of one tree with another's, so that captured buffers stay valid."""

    def copy(old: Tensor, new: Tensor) -> Tensor:
        return old.copy_(new)

    with torch.no_grad():
        pytree.tree_map(copy, into, values)
