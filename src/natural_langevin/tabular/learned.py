"""The result of a fit: weighted posteriors, whose mixture predicts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from natural_langevin._internal.atomic import write
from natural_langevin._internal.checked_json import read_json, with_checksum, without_checksum
from natural_langevin.likelihoods.distributions import ZeroOrLogNormal
from natural_langevin.metrics.conformal import threshold
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.tabular.crossvalidation import networks
from natural_langevin.tabular.inputs import Inputs
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Networks, Predictive
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.views import View
from natural_langevin.tabular.weighing import at_scales

#: Rows predicted at a time.
CHUNK = 1000
#: Its multiples modulo 1 are spread evenly, however many there are.
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, eq=False)
class Member:
    """A view's posterior in the mixture. ``sound``: the numbers of its networks that count
    (``TableFit.sound``), nearly always all. ``factors``: what its noise is multiplied by, [factor,
    share] each."""

    view: View
    posterior: Posterior
    sound: Tensor
    weight: float
    factors: list[list[float]]

    def networks(self, x: Tensor) -> Networks:
        """What its networks say of encoded rows."""
        return networks(self.posterior, self.view.inputs(x)).of(self.sound)


@dataclass(frozen=True)
class Drift:
    """How far a target may go after the last date: a normal variable of deviation c (t / unit)^h,
    with [c, h, share] each in ``parts``. ``place``: of the date among the inputs."""

    place: int
    last: float
    unit: float
    parts: list[list[float]]

    def of(self, x: Tensor, count: int) -> Tensor | None:
        """(network, n, 1) for so many networks, of which each has one of the parts; None where no
        row is after the last date."""
        after = (x[:, self.place].double() - self.last).clamp_min(0.0) / self.unit
        if not bool((after > 0).any()):
            return None
        size, power, share = torch.tensor(self.parts, dtype=torch.float64).T
        spread = torch.arange(1, count + 1, dtype=torch.float64) * GOLDEN % 1.0
        own = torch.searchsorted(share.cumsum(0) / share.sum(), spread).clamp_max(len(share) - 1)
        return (size[own, None] * after ** power[own, None])[..., None]


@dataclass(frozen=True, eq=False)
class Learned:
    """The mixture of ``members``, and how to read it.

    ``scale``: the geometric mean of the factors of the noise or, of classes, that of ``scales``,
    [scale, share] each, which made the mixture surer (``weighing``). ``choice``: every view that
    was tried, with its held-out NLL and weight; ``reason``: the same in words. ``drift``: of
    numbers with dates."""

    members: list[Member]
    scale: float
    strangeness: Tensor
    choice: list[dict[str, Any]]
    reason: str
    scales: list[list[float]]
    drift: Drift | None = None

    @property
    def _first(self) -> Member:
        """The member of the largest weight."""
        return max(self.members, key=lambda member: member.weight)

    @property
    def outcome(self) -> Outcome:
        """What is sampled of the target, in the view of the largest weight."""
        return self._first.view.outcome

    @property
    def settings(self) -> Settings:
        """Of the view of the largest weight."""
        return self._first.view.settings

    @property
    def inputs(self) -> Inputs:
        """Of the view of the largest weight."""
        return self._first.view.inputs

    @property
    def best(self) -> Posterior:
        """The posterior of the largest weight."""
        return self._first.posterior

    @property
    def posteriors(self) -> list[Posterior]:
        """Of every member."""
        return [member.posterior for member in self.members]

    @property
    def weights(self) -> Tensor:
        """Of every member."""
        return torch.tensor([member.weight for member in self.members], dtype=torch.float64)

    def conformal(self, level: float) -> float:
        """How strange (see ``Weighed``) the rows may be so that ``level`` of new ones are not
        stranger: the conformal threshold of the rows that folds held out. Their networks saw fewer
        rows than those that predict, so that the coverage is kept in practice, not by a theorem."""
        if not len(self.strangeness):
            raise ValueError("conformal prediction needs held-out rows, and folds was 0")
        return threshold(self.strangeness, level)

    def probabilities(self, x: Tensor) -> Tensor:
        """(n, class), of classes or ordered classes."""
        return self.uncertainty(x)[0]

    def uncertainty(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class probabilities (n, class), and the epistemic part (n,) of their entropy in nats. Its
        share is that of the networks as they are, (H(mean) - mean H) / H(mean): scaling changes how
        large the entropy is, and says nothing about where it comes from."""
        means, share = [], []
        for part in x.split(CHUNK):
            p, entropy = torch.zeros(()), torch.zeros(())
            for weight, each in self._class_probabilities(part):
                p = p + weight * each.mean(0)
                entropy = entropy + weight * torch.special.entr(each).sum(-1).mean(0)
            means.append(p)
            whole = torch.special.entr(p).sum(-1).clamp_min(torch.finfo(p.dtype).tiny)
            share.append((1 - entropy / whole).clamp(0, 1))
        scaled = at_scales(torch.cat(means), self.scales)
        scaled = scaled / scaled.sum(1, keepdim=True)
        return scaled, torch.special.entr(scaled).sum(-1) * torch.cat(share)

    def predictive(self, x: Tensor, *, flat: bool = True) -> Predictive:
        """The distribution of the targets of these rows, of numbers or counts."""
        if self.outcome.classes:
            raise TypeError("classes have probabilities: use probabilities(x)")
        laws, shares = [], []
        for member in self.members:
            said = member.networks(x)
            count = len(said.outputs)
            drift = None if self.drift is None else self.drift.of(x, count)
            for factor, share in member.factors:
                laws.append((said, member.view.outcome, factor, drift))
                part = member.weight * share / count
                shares.append(torch.full((count,), part, dtype=torch.float64))
        shares_of_all = torch.cat(shares)
        weights = shares_of_all / shares_of_all.sum()
        return Predictive(self.outcome, _joined(laws), weights, flat=flat)

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """ln p of the targets (as ``learn`` takes them) of these rows: (n,)."""
        found = []
        for part, own in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
            if self.outcome.classes:
                p = self.probabilities(part)[torch.arange(len(own)), own]
                found.append(p.clamp_min(torch.finfo(p.dtype).tiny).log())
            else:
                found.append(torch.as_tensor(self.predictive(part, flat=False).log_prob(own)))
        return torch.cat(found)

    def network_means(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What every network expects: its weight (network,), and class probabilities or means of
        targets (network, n, k). Without the scale of held-out rows."""
        if not self.outcome.classes:
            found = self.predictive(x, flat=False)
            return torch.as_tensor(found.weights), torch.as_tensor(found.network_means)
        every = list(self._class_probabilities(x))
        weights = [torch.full((len(p),), w / len(p), dtype=torch.float64) for w, p in every]
        return torch.cat(weights), torch.cat([p for _, p in every]).double()

    def _class_probabilities(self, x: Tensor) -> Iterator[tuple[float, Tensor]]:
        """Of every member its weight, and probabilities (network, n, class)."""
        for member in self.members:
            law: Any = member.networks(x).law(member.view.outcome)
            yield member.weight, law.probs

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Posteriors in folders 0, 1, ..., and learned.json, which is written last."""
        folder = Path(folder)
        for k, member in enumerate(self.members):
            member.posterior.save(folder / str(k))
        value = {
            "members": [
                member.view.to_json()
                | {
                    "sound": member.sound.tolist(),
                    "weight": member.weight,
                    "factors": member.factors,
                }
                for member in self.members
            ],
            "scale": self.scale,
            "strangeness": [round(value, 9) for value in self.strangeness.tolist()],
            "choice": self.choice,
            "reason": self.reason,
            "scales": self.scales,
            "drift": None if self.drift is None else asdict(self.drift),
        }
        write(folder / "learned.json", json.dumps(with_checksum(value), indent=1).encode())

    @staticmethod
    def load(folder: str | os.PathLike[str], device: str = "cpu") -> Learned:
        """What ``save`` wrote."""
        folder = Path(folder)
        value = without_checksum(read_json(folder / "learned.json"))
        members = []
        for k, one in enumerate(value["members"]):
            view = View.from_json(one)
            posterior = Posterior.load(folder / str(k), view.network.to(device))
            members.append(
                Member(
                    view, posterior, torch.tensor(one["sound"]), float(one["weight"]),
                    one["factors"],
                )
            )  # fmt: skip
        return Learned(
            members, float(value["scale"]),
            torch.tensor(value["strangeness"], dtype=torch.float64), value["choice"],
            str(value["reason"]), value["scales"],
            None if value.get("drift") is None else Drift(**value["drift"]),
        )  # fmt: skip


def _joined(parts: list[tuple[Networks, Outcome, float, Tensor | None]]) -> Distribution:
    """The laws of all networks, (network, n, target), each at its factor. Views of one mixture
    differ in their likelihood only where noise is normal."""
    laws = [said.law(outcome, factor, drift) for said, outcome, factor, drift in parts]
    if isinstance(laws[0], Normal):
        locs, scales = zip(*[(law.loc, law.scale.expand_as(law.loc)) for law in laws], strict=True)  # type: ignore[attr-defined]
        return Normal(torch.cat(locs), torch.cat(scales), validate_args=False)
    if isinstance(laws[0], ZeroOrLogNormal):
        own = [(law.logits, law.loc, law.scale) for law in laws]  # type: ignore[attr-defined]
        return ZeroOrLogNormal(*map(torch.cat, zip(*own, strict=True)))
    outputs = torch.cat([said.outputs for said, _, _, _ in parts])
    drift = parts[0][3]
    if drift is not None:
        drift = torch.cat([own for _, _, _, own in parts if own is not None])
    return Networks(outputs, None).law(parts[0][1], drift=drift)
