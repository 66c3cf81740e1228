"""Types that many files share, defined once. Imports torch alone; everything may import it."""

from __future__ import annotations

from torch import Tensor

#: Parameters by name: {name: (*shape)}, with leading axes (chain, draw) where it is said.
Params = dict[str, Tensor]

#: A minibatch (x, y).
Batch = tuple[Tensor, Tensor]

#: For every bias, the weights of its units; for a weight whose units have none, ``{weight: ()}``.
Units = dict[str, tuple[str, ...]]
