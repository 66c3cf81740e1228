"""``Likelihood``: the interface that the dynamics and the posterior use.

``distribution`` is the one definition: p_theta(y | x) as a ``torch.distributions`` object. The
log-loss, draws, predictions, uncertainties, quantiles and scores follow from it. A likelihood may
define its log-loss or its draws explicitly where that is faster or more exact; a test compares them
with the distribution.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from natural_langevin import random
from natural_langevin._internal.light_autograd import grad
from natural_langevin.priors.constrained import PositivePrior

#: What a likelihood learns along the way ({} for most): one value per chain, by name.
State = dict[str, Tensor]


class Likelihood:
    """Maps a network's outputs to a distribution of the targets. Subclasses are final.

    Functions see the outputs of one chain for a batch, (B, ...), and a ``state`` without the chain
    axis (or one that broadcasts against the outputs, where networks of several chains are seen at
    once)."""

    #: Whether targets are labels of classes.
    discrete = False
    #: The label that stands for no label at all, if there is one.
    ignore_index: int | None = None
    #: What the log-loss of every class is multiplied by, if anything.
    class_weights: tuple[float, ...] | None = None
    #: Whether what the network gives, a tuple or a dictionary as well, is taken as it is.
    raw_outputs = False
    #: What makes class probabilities of the outputs, where these are logits.
    link: Literal["softmax", "sigmoid"] | None = None
    #: Whether a target is a number with Normal noise, or Student's t, around an output: a run may
    #: then change its units. One that says so defines ``in_units``, and where it learns something,
    #: ``state`` holds squares of widths.
    has_units = False
    #: Whether outliers are expected.
    heavy_tails = False

    @property
    def outputs_per_target(self) -> int:
        """How many outputs there are for every number of a target."""
        return 1

    @property
    def own_parameter(self) -> tuple[str, PositivePrior] | None:
        """A parameter of its own that is sampled with the network, by name, and its prior: the last
        column of the outputs is then its logarithm (see ``own_parameter``)."""
        return None

    @property
    def known_width(self) -> float | None:
        """The size of the noise, where it was given in the targets' units."""
        return None

    def in_units(self, size: float) -> Likelihood:
        """The same likelihood of targets and outputs that are divided by ``size``."""
        if self.has_units:
            raise NotImplementedError(
                f"{type(self).__name__} has has_units=True, so it must be convertible to other "
                "units: define in_units(size), or leave has_units=False"
            )
        return self

    @property
    def learns_width(self) -> bool:
        """Whether one width of Gaussian noise, the same everywhere, is learned during the run."""
        return False

    def init(self, chains: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """The state before the first step, with a leading chain axis."""
        return {}

    def update(self, state: State, outputs: Tensor, y: Tensor, rate: Tensor) -> State:
        """The state after seeing a batch."""
        return state

    @property
    def can_draw(self) -> bool:
        """Whether it has a ``sample`` of its own: the quantiles of this one may be unknown."""
        return type(self).sample is not Likelihood.sample

    @property
    def learns(self) -> bool:
        """Whether it has a state, which batches update."""
        return bool(self.init(1, dtype=torch.float32, device=torch.device("cpu")))

    def refuse_learning(self, what: str) -> None:
        """Refuses a likelihood that is updated from batches: ``what`` compares energies of one."""
        if self.learns:
            raise ValueError(
                f"{what} needs a fixed likelihood, but {self!r} is updated from every batch: "
                "give its value, such as likelihoods.Gaussian(sigma=0.3)"
            )

    def distribution(self, outputs: Tensor, state: State) -> Distribution | None:
        """p_theta(. | x_n) of every component of every target, which are independent given the
        network: ``batch_shape`` is that of the targets. None if only a loss is known."""
        return None

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        """-ln p(y_n | x_n) for every sample, (B,): a sum over the components of an observation,
        never an average over the batch."""
        law = self._known(outputs, state)
        return per_sample(-law.log_prob(y.to(outputs.dtype).reshape(shape_of(law))))

    def output_gradient(self, outputs: Tensor, y: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """d loss_n / d outputs_n for every sample, and loss_n."""

        def total(o: Tensor) -> tuple[Tensor, Tensor]:
            losses = self.log_loss(o, y, state)
            return losses.sum(), losses

        return grad(total, has_aux=True)(outputs)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        """y~ ~ p_theta(. | x) for every sample, drawn from the stream ``key``: the quantile at a
        uniform draw, where torch knows the quantile function."""
        law = self._known(outputs, state)
        u = random.uniform(key, shape_of(law).numel()).reshape(shape_of(law)).to(outputs.dtype)
        try:  # a float32 uniform may be 1, where most quantiles are infinite
            draws: Tensor = law.icdf(u.clamp_max(1 - 2.0**-24))
        except NotImplementedError as error:
            raise ValueError(
                f"torch has no quantile function for {type(law).__name__}: give a function that "
                "draws from it, such as LogLoss(..., sample=fn)"
            ) from error
        return draws

    def class_logits(self, outputs: Tensor) -> Tensor | None:
        """The outputs (..., K) where ``distribution`` is Categorical with these logits."""
        return None

    def noise_variance(self, state: State) -> Tensor | None:
        """The observation variance of a regression, where it is the same everywhere."""
        return None

    def check(self, outputs: Tensor, y: Tensor) -> None:
        """Refuses targets ``y`` (all, or a batch) that do not fit ``outputs`` (of any samples; only
        its shape matters)."""

    def _known(self, outputs: Tensor, state: State) -> Distribution:
        law = self.distribution(outputs, state)
        if law is None:
            raise ValueError(
                f"{type(self).__name__} has no distribution to draw from: give LogLoss(fn, "
                'sample=...) or distribution=..., or use targets="data"'
            )
        return components(law)


def components(law: Distribution) -> Distribution:
    """The distribution without ``Independent``: one per component of a target."""
    return components(law.base_dist) if isinstance(law, Independent) else law


def shape_of(law: Distribution) -> torch.Size:
    """The shape of the targets."""
    return law.batch_shape + law.event_shape


def per_sample(terms: Tensor) -> Tensor:
    """(B, ...) summed over all but the samples: (B,)."""
    return terms if terms.ndim == 1 else terms.reshape(terms.shape[0], -1).sum(1)


def same_observation(kind: Likelihood, outputs: Tensor, y: Tensor) -> None:
    """Checks that there are ``outputs_per_target`` outputs for every number of a target."""
    per_component = kind.outputs_per_target
    own = outputs if kind.own_parameter is None else outputs[..., :-1]
    per_output, per_target = own[0].numel(), y[0].numel()
    if per_output != per_component * per_target:
        wanted = "they must agree" if per_component == 1 else f"give {per_component} per value"
        raise ValueError(
            f"{type(kind).__name__} targets hold {per_target} values per sample (shape "
            f"{tuple(y.shape)}) but the model gives {per_output} (shape {tuple(own.shape)}): "
            f"{wanted}"
        )


def check_real(kind: str, y: Tensor) -> None:
    """Refuses integer targets of a regression: most likely they are labels or counts."""
    if not y.dtype.is_floating_point:
        raise TypeError(
            f"{kind} targets must be floating point, got dtype {y.dtype}: use y.float()"
        )


def check_counts(kind: str, y: Tensor) -> None:
    """Refuses targets that are not whole numbers from 0."""
    if (y < 0).any() or (y != y.round()).any():
        wrong = y[(y < 0) | (y != y.round())].flatten()[0].item()
        raise ValueError(
            f"{kind} targets must be counts 0, 1, 2, ..., got {wrong!r}: numbers that are not "
            "counts need another likelihood, such as Gaussian"
        )


def check_labels(kind: str, y: Tensor, classes: int, ignored: int | None = None) -> None:
    """Refuses labels that are not integers 0 .. classes - 1 (or ``ignored``)."""
    if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
        raise TypeError(
            f"{kind} targets must be integer class indices, got dtype {y.dtype}: "
            "use y.long() (or y.argmax(-1) for one-hot targets)"
        )
    counted = y if ignored is None else y[y != ignored]
    low, high = (int(counted.min()), int(counted.max())) if counted.numel() else (0, 0)
    if not 0 <= low <= high < classes:
        fewer = low > 0 and high - low < classes
        remedy = f"use y - {low}" if fewer else (
            f"end the network with {high + 1} outputs" if low >= 0 else "count classes from 0"
        )  # fmt: skip
        if not fewer and ignored is None and kind == "Categorical":
            remedy += f", or say ignore_index={min(low, 0) or high} if that means no label"
        raise ValueError(
            f"class indices must lie in 0 .. {classes - 1} (the model has {classes} outputs), "
            f"got values from {low} to {high}: {remedy}"
        )
