"""What is run: sizes, grids, and the settings of a chain.

The recipe of every sampling part: inputs x M (``priors.blur_pixels``), Gaussian prior with a
variance for each layer, QDOP that follows every batch as the paper's does, momentum with friction
0.1, step size falling as (1 + k / offset)^(-1/3) once it has risen, temperature 1. What is not
fixed here is chosen on the last ``validation`` training images, by draws from half a run, in
searches (``search``) that go on where their best cell lies on an edge:

- select: length of the blur x step size x damping;
- refine: the variances of all three layers, one for all of them, and plain inputs, at what was
  chosen;
- local-select: a prior whose first layer has places in the image (``local``), their width and the
  first variance;
- noisy-select: the share of labels that predictions take for random (``noisy``), with which long
  steps and wide priors cost less, and so the step size and two variances again; by single chains;
- both-select: noisy labels and places; by pooled chains and the Brier score, which counts what is
  right and wrong more than how sure the wrong ones are;
- deskewed-select: images set upright, half of that, or not at all (``deskew``), and what came out
  before once more, in the same way.

A cell of a search is ``copies`` chains, scored as one ensemble: what is to be chosen is a setting
whose chains are pooled, and hot chains lose by a few draws what they win by many. Thousands of
draws cannot tell how small a probability is, so a search scores with a share 1e-4 of the uniform
(``parts.resolved``): else a single image that no draw has right decides. All rows have both NLLs.
Where predictions have such a share of their own, nothing needs to be added.

Damping is counted in data, epsilon = ``damping`` / N, so that it means the same for every N: 6 is
the paper's 1e-4 for 60,000 images. A smaller one lets weights that the data do not see reach the
prior's width sooner; too small a one, with long steps, throws a chain far away at its start.

Every round of a search is the chains of one run. Test images are scored in the final parts, whose
settings are then fixed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from lab.beyond.inputs import Inputs
from lab.beyond.search import OFF, Axis


class Setting(NamedTuple):
    """What a chain is run with; ``length`` 0: pixels as they are."""

    length: float
    step_size: float
    damping: float  # times 1/N
    variances: tuple[float, ...]  # of the prior, for each layer
    width: float = 0.0  # of the first layer's places in the image (``local``); 0: none
    noise: float = 0.0  # share of labels that predictions take for random (``noisy``)
    deskew: float = 0.0  # share of an image's slant that is taken out (``deskew``)

    @property
    def inputs(self) -> Inputs:
        """What is done to its images."""
        return Inputs(self.length, self.deskew)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {**self._asdict(), "variances": list(self.variances)}

    @staticmethod
    def from_dict(known: dict[str, Any]) -> Setting:
        """The inverse of ``as_dict``."""
        given = {k: known[k] for k in Setting._fields if k in known}
        return Setting(**given)._replace(variances=tuple(known["variances"]))


#: Training images of the data set that the first levels below are for.
MNIST_SIZE = 60_000
LENGTH = Axis(0.8, 1.4, (0, 1))
STEP_SIZE = Axis(2e-4, 2.0, (-1, 0, 1))
DAMPING = Axis(18.0, 3.0, (-1, 0, 1))
VARIANCES = tuple(Axis(start, 2.5, (-1, 0, 1)) for start in (0.2, 0.3, 0.008))
WIDTH = Axis(0.2, 1.5, (-1, 0, 1))
NOISE = Axis(1e-3, 3.0, (-1, 0, 1))
DESKEW = Axis(1.0, 2.0, (OFF, -1, 0), grows=False)
OVERDAMPED_STEP_SIZE = Axis(1.4e-3, 2.0, (-1, 0, 1))
#: Settings of a prototype on MNIST, shown beside the chosen ones: with momentum, and without.
PROTOTYPE = (Setting(0.8, 3e-4, 6.0, (0.2, 0.3, 0.008)),)
OVERDAMPED_PROTOTYPE = (
    Setting(0.0, 1.4e-3, 6.0, (0.12, 0.25, 0.01)),
    Setting(0.8, 1.4e-3, 6.0, (0.2, 0.3, 0.008)),
)


@dataclass(frozen=True)
class Protocol:
    """Sizes and grids. The defaults are the table's."""

    hidden: tuple[int, ...] = (400, 400)
    batch_size: int = 100
    validation: int = 10_000
    friction: float = 0.1
    offset: int = 2_000
    rise: int = 1_000  # updates until the step size has its length
    adapt: Literal["burn-in", "always"] = "always"
    select_steps: int = 30_000
    select_burn_in: int = 10_000
    steps: int = 60_000
    burn_in: int = 10_000
    thin: int = 100
    select_thin: int = 50
    copies: int = 2  # chains of every cell of a search, which are scored pooled
    seeds: int = 5
    pooled: int = 12
    mixed: bool = True  # whether the widest pool has chains of the lengths next to the chosen one
    extensions: int = 2  # rounds of a search beyond its first
    length: Axis = LENGTH
    step_size: Axis = STEP_SIZE
    damping: Axis = DAMPING
    variances: tuple[Axis, ...] = VARIANCES
    width: Axis = WIDTH
    local_seeds: int = 2  # of ``pooled`` chains, with places
    noise: Axis = NOISE
    noisy_pooled: int = 4  # chains of a seed, with noisy labels
    both_pooled: int = 6  # and with places as well
    deskew: Axis = DESKEW
    deskewed_mixed: int = 24  # chains of the next best share, for the widest pool
    single: tuple[float, ...] = (0.03, 0.1, 0.3)  # one variance for all layers
    overdamped_step_size: Axis = OVERDAMPED_STEP_SIZE
    fixed: tuple[Setting, ...] = ()  # shown beside the chosen setting in the final part
    overdamped_fixed: tuple[Setting, ...] = ()
    sgd_step_sizes: tuple[float, ...] = (0.05, 0.1, 0.2)
    dropout_rates: tuple[float, ...] = (0.2, 0.35, 0.5)
    ensembles: int = 1  # of ``pooled`` SGD networks, for each of plain and mapped inputs
    masks: int = 50  # of MC-dropout
    seed: int = 1

    def fit_to(self, train_size: int) -> Protocol:
        """Held out is at most a sixth of the training rows. Searches for a step size begin at one
        whose minibatches bring the same heat, eta N / (2 B): at most fifty times MNIST's."""
        factor = min(50.0, max(1.0, MNIST_SIZE / train_size))
        steps, others = (
            replace(axis, start=factor * axis.start)
            for axis in (self.step_size, self.overdamped_step_size)
        )
        held_out = min(self.validation, train_size // 6)
        return replace(self, validation=held_out, step_size=steps, overdamped_step_size=others)

    def shortened(self, steps: int) -> Protocol:
        """The same with ``steps`` updates in the final parts: everything else in proportion, but
        for the step size's schedule."""
        scale = steps / self.steps
        names = ("rise", "burn_in", "select_steps", "select_burn_in", "thin", "select_thin")
        other: dict[str, Any] = {k: max(1, round(scale * getattr(self, k))) for k in names}
        return replace(self, steps=steps, **other)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


#: Every size as small as it can be: what runs in seconds on a CPU.
TOY = Protocol(
    hidden=(16, 16), batch_size=20, validation=100, select_steps=60, select_burn_in=20, steps=200,
    rise=10, burn_in=40, thin=20, select_thin=20, seeds=2, pooled=2, extensions=1,
    length=Axis(1.0, 1.4, (0,)), step_size=Axis(2e-4, 2.0, (0,)), damping=Axis(60.0, 3.0, (0,)),
    variances=(Axis(0.2, 2.0, (0,), grows=False), Axis(0.3, 2.0, (0, 1)), Axis(0.02, 2.0, (0,))),
    width=Axis(0.2, 1.5, (0,), grows=False), local_seeds=1, single=(0.1,),
    noise=Axis(1e-2, 3.0, (0,), grows=False), noisy_pooled=2, both_pooled=2, deskewed_mixed=2,
    overdamped_step_size=Axis(1e-3, 2.0, (0,), grows=False),
    sgd_step_sizes=(0.1,), dropout_rates=(0.2,), ensembles=2, masks=3,
)  # fmt: skip
