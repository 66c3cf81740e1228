"""Verdicts: what the diagnostics found, in words, and what to do about it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from natural_langevin._internal.extras import new_figure
from natural_langevin._internal.messages import shown
from natural_langevin.diagnostics.advice import Advice
from natural_langevin.diagnostics.configurational import Configurational
from natural_langevin.diagnostics.function_space import (
    Mixing,
    StillError,
    chain_distances,
    mixing,
    said,
)
from natural_langevin.diagnostics.funnel import Funnel
from natural_langevin.diagnostics.halved import Halved
from natural_langevin.diagnostics.kinetic import Kinetic
from natural_langevin.diagnostics.limits import distance_limit, ess_limit, rhat_limit, too_high
from natural_langevin.diagnostics.ranks import Array
from natural_langevin.diagnostics.reading import Reading
from natural_langevin.diagnostics.thrown import Thrown
from natural_langevin.metrics import ClassificationScores, RegressionScores

#: Extra temperature, as a fraction of T, that is worth a word.
BIAS_LIMIT = 0.1
#: And differences between the sizes of noise that chains have learned, in the same way.
NOISE_LIMIT = 0.05
#: What is followed first, at the inputs given.
PREDICTIONS = "predictions"
#: Inputs of at most so many numbers are written out.
_SHOWN = 8


#: What is said where there is no verdict.
FINE = "Nothing suspicious was found."


@dataclass(frozen=True)
class Noise:
    """Sizes of noise that every chain has learned (chain,), and how well the data determine one."""

    sizes: Array
    error: float

    @property
    def differs(self) -> bool:
        """Beyond ``NOISE_LIMIT`` and twice what the data leave open."""
        spread = float(np.log(self.sizes).std(ddof=1)) if len(self.sizes) > 1 else 0.0
        return not spread <= max(NOISE_LIMIT, 2 * self.error)

    def __str__(self) -> str:
        return f"{self.sizes.min():.3g} to {self.sizes.max():.3g}"


@dataclass(frozen=True)
class Diagnosis:
    """What ``posterior.diagnose`` found; ``print`` it.

    ``mixing`` is of the network's outputs (of classes, their probabilities) at the inputs given,
    ``beyond`` at probes around them, by kind, ``parameters`` of the parameters asked for: all of
    them are ``followed``, alike, and the worst number of all counts. ``rhat`` and ``ess`` hold one
    value for every number of ``mixing``; ``distances`` is (chain, chain), over ``healthy`` chains.
    ``noise``: the sizes of noise that the chains have learned, with the error that the data leave
    in them, as a part of themselves. ``funnel``: what makes chains slow, which is said where
    they have not mixed. ``thrown``: a chain that was out of the posterior for a while. The two
    temperatures are None where they were not measured. ``halved`` compares with a run at half the
    step size, by "predictions" and by tensor. ``shared``: the chains saw the same minibatches;
    ``adapting``: the metric followed the chain while draws were kept. ``advice`` knows what the run
    has done already. ``scores``: of predictions for held-out data, where there were some.

    Two questions, one after the other: has the posterior converged (``verdicts``), and are the
    predictions usable (``scores.verdicts``)? Predictions may be, long before every chain agrees.
    """

    mixing: Mixing
    diverged: dict[int, int]  # chain -> step
    healthy: list[int]
    distances: Array
    thin: int | None = None
    parameters: dict[str, Mixing] = field(default_factory=dict)
    beyond: dict[str, Mixing] = field(default_factory=dict)
    inputs: Mapping[str, Tensor] = field(default_factory=dict)  # of what was followed, by name
    noise: Noise | None = None
    funnel: Funnel | None = None
    thrown: Thrown | None = None
    kinetic: Kinetic | None = None
    configurational: Configurational | None = None
    temperature: float = 1.0  # the smallest T > 0 among the chains
    halved: dict[str, Halved] = field(default_factory=dict)
    shared: bool = False
    adapting: bool = False
    advice: Advice = field(default_factory=Advice)
    scores: ClassificationScores | RegressionScores | None = None

    @property
    def usable(self) -> bool | None:
        """Whether the predictions for held-out data beat a blind guess and a single network, and
        are calibrated; None without such data."""
        return None if self.scores is None else not self.scores.verdicts

    @property
    def chains(self) -> int:
        """Number of chains that were diagnosed."""
        return self.mixing.values.shape[0]

    @property
    def draws(self) -> int:
        """Number of draws of each chain."""
        return self.mixing.values.shape[1]

    @property
    def rhat(self) -> Array | None:
        """Split R-hat of every number looked at; None with fewer than two chains."""
        return self.mixing.rhat

    @property
    def ess(self) -> Array:
        """Effective sample size of every number looked at, over all chains."""
        return self.mixing.ess

    @property
    def verdicts(self) -> list[str]:
        """What was found and what to do about it, one paragraph each; empty when all is well."""
        found = [
            f"Chain {chain} diverged at step {step}: {self.advice.smaller()}."
            for chain, step in self.diverged.items()
        ]
        return [
            *found,
            *self._mixing_verdicts(),
            *([] if self.thrown is None else [self.thrown.said(self.advice.smaller())]),
            *self._kinetic_verdicts(),
            *self._bias_verdicts(),
            *self._halved_verdicts(),
            *self._setting_verdicts(),
        ]

    @property
    def followed(self) -> dict[str, Mixing]:
        """Everything that was followed along the draws."""
        return {PREDICTIONS: self.mixing} | self.beyond | self.parameters

    def unmixed(self, ess: float) -> str:
        """Why the chains have not mixed, in short, and nothing where they agree with ``ess``
        effective draws in all, or as many as so few draws can show; of one chain, by these
        alone."""
        every, count = self.followed, sum(len(m.ess) for m in self.followed.values())
        if apart := self._apart():
            most = max(m.rhat.max() for m in apart.values())  # type: ignore[union-attr]
            return f"R-hat is up to {said(most)}"
        if self.noise is not None and self.noise.differs:
            return f"the chains have learned different noise levels, {self.noise}"
        least = min(float(m.ess.min()) for m in every.values())
        if least < ess_limit(self.chains, self.draws, count, ess):
            return f"there are as few as {least:.0f} effective draws"
        return ""

    def _mixing_verdicts(self) -> list[str]:
        found = []
        every, count = self.followed, sum(len(m.ess) for m in self.followed.values())
        apart = self._apart()
        if self.rhat is None:
            found.append("One chain cannot show whether it has converged: run at least two.")
        elif apart:
            where = "; ".join(
                f"{self._place(k, m.worst)}, R-hat {said(m.rhat.max())}"  # type: ignore[union-attr]
                for k, m in apart.items()
            )
            agree = "" if PREDICTIONS in apart else " At the inputs given they agree."
            found.append(
                f"The chains disagree, most at {where} (with this many draws, chains that agree "
                f"stay below {rhat_limit(self.chains, self.draws, count):.3g}).{agree} Remedy: "
                f"{self.advice.longer()}, or pool more chains and treat them as an ensemble."
            )
        found += self._outlier_verdict()
        name = min(every, key=lambda k: float(every[k].ess.min()))
        least = float(every[name].ess.min())
        if least < ess_limit(self.chains, self.draws, count):
            found.append(
                f"The draws are strongly correlated (effective sample size {least:.0f} of "
                f"{self.chains * self.draws} at {self._place(name, int(every[name].ess.argmin()))};"
                f" of predictions {np.median(self.ess):.0f} in the median): "
                f"{self.advice.faster()}."
            )
        if self.noise is not None and self.noise.differs:
            found.append(
                f"The chains have learned different noise levels, {self.noise} (the data "
                f"determine them to within {self.noise.error:.0%}): {self.advice.longer()}."
            )
        if found and self.funnel is not None:
            found.append(str(self.funnel))
        return found

    def _apart(self) -> dict[str, Mixing]:
        """What was followed that has an R-hat above what chains that agree would show."""
        every = {k: m for k, m in self.followed.items() if m.rhat is not None}
        if not every:
            return {}
        rhat = np.concatenate([m.rhat for m in every.values()])
        ess = np.concatenate([m.ess for m in every.values()])
        high = too_high(rhat, ess, self.chains, self.draws, len(ess))
        ends = np.cumsum([len(m.ess) for m in every.values()])
        parts = zip(every.items(), np.split(high, ends[:-1]), strict=True)
        return {k: m for (k, m), part in parts if part.any()}

    def _place(self, name: str, number: int) -> str:
        """Where a number that was followed is: its input and output, or its component."""
        index = self.followed[name].places[number]
        if name in self.parameters:
            return f"{name}[{', '.join(map(str, index))}]"
        words = f"{name} (input {index[0]}" if index else f"{name} ("
        x = self.inputs.get(name)
        if index and x is not None and x[0].numel() <= _SHOWN:
            words += f", x = {[float(f'{v:.3g}') for v in x[index[0]].flatten().tolist()]}"
        return f"{words}, output {', '.join(map(str, index[1:])) or 0})"

    def _outlier_verdict(self) -> list[str]:
        """One chain far from all others while those agree; with two chains nobody can tell."""
        if self.chains < 3:
            return []
        far = self.distances + np.where(np.eye(self.chains) > 0, np.inf, 0.0)
        nearest = far.min(axis=1)
        outlier = int(nearest.argmax())
        rest = np.delete(np.delete(self.distances, outlier, 0), outlier, 1)
        if nearest[outlier] <= distance_limit(self.draws) or rest.max() > nearest[outlier] / 2:
            return []
        return [
            f"Chain {self.healthy[outlier]} stands apart, {nearest[outlier]:.1f} standard "
            "deviations from the nearest other chain: it sits in another mode or has not "
            "converged. Look at its loss in posterior.trace; drop it only with a reason."
        ]

    def _kinetic_verdicts(self) -> list[str]:
        found: list[str] = []
        k = self.kinetic
        if k is None:
            return found
        if k.lost > 0.5:
            found.append(
                "The noise of a step is as small as the rounding of the parameters: the chain is "
                "about to diverge, or the step size is too small for this dtype. Use float64, or "
                "another step size."
            )
        if k.cold is not None and k.cold > 1e-6:
            found.append(
                f"A chain of temperature 0 moves as if it were at {k.cold:.2g}: its steps are not "
                "the preconditioned descent that they should be."
            )
        if k.wrong and k.temperature is not None:
            drift = "not measurable" if k.drift is None else str(k.drift)
            wrong = ", ".join(f"{name} {b}" for name, b in list(k.wrong_tensors.items())[:4])
            tensors = f" Tensors whose noise is wrong: {wrong}." if wrong else ""
            found.append(
                f"The noise is mis-scaled: steps show {k.temperature} times the target "
                f"temperature (variance of the noise {k.noise}, drift {drift}, where 1 is "
                f"right).{tensors} The samples are not from the posterior: check a changed step, "
                "a custom preconditioner (noise must be A z where the drift is A A^T v), the "
                "prior's log_density against its gradient, and num_data."
            )
        if k.minibatch is not None and k.minibatch > BIAS_LIMIT * self.temperature:
            found.append(
                f"Minibatch noise adds up to {k.minibatch:.2g} to the temperature "
                f"{self.temperature:g}, so variances of weights that the data determine, and the "
                f"epistemic part of predictions, are up to {k.minibatch / self.temperature:.0%} "
                f"too large: {self.advice.smaller()} (it falls in proportion), or "
                f"{self.advice.larger_batch()}."
            )
        return found

    def _bias_verdicts(self) -> list[str]:
        """Of the samples as a whole, else of the tensors that stand out."""
        if self.configurational is None:
            return []
        whole = self._heat("The samples are", self.configurational.temperature, sigmas=3)
        if whole:
            return whole
        # The more tensors are looked at, the further one of them strays by chance.
        sigmas = 3 + math.sqrt(2 * math.log(max(1, len(self.configurational.tensors))))
        found = [
            text
            for name, reading in self.configurational.tensors.items()
            for text in self._heat(f"The samples of {name!r} are", reading, sigmas=sigmas)
        ]
        return found[:4]

    def _heat(self, who: str, reading: Reading, *, sigmas: float) -> list[str]:
        if not reading.known:
            return []
        sure = abs(reading.value - 1) > sigmas * reading.error
        if sure and reading.value > 1 + BIAS_LIMIT:
            return [
                f"{who} too hot, {reading} times their temperature: a bias of the step "
                f"size or of minibatch noise; {self.advice.smaller()}, or "
                f"{self.advice.larger_batch()}."
            ]
        if sure and reading.value < 1 - BIAS_LIMIT:
            return [
                f"{who} too cold, {reading} times their temperature: the chains have "
                f"not spread over the posterior yet: {self.advice.faster()}."
            ]
        return []

    def _halved_verdicts(self) -> list[str]:
        found = []
        for name, one in self.halved.items():
            who = "predictions" if name == "predictions" else repr(name)
            if one.hot:
                found.append(
                    f"The draws of {who} are too wide: variances are {one.ratio} times those at "
                    f"half the step size, so {100 * one.excess:.3g} % above those of small steps. "
                    f"Remedy: {self.advice.smaller()}, or {self.advice.larger_batch()}."
                )
            elif one.shifted:
                found.append(
                    f"The means of {who} move by {one.shift.value:.2g} standard deviations when "
                    "the step size is halved: it biases them, or one of the runs is too short."
                )
        return found[:4]

    def _setting_verdicts(self) -> list[str]:
        found = []
        if self.shared and self.chains > 1:
            found.append(
                "All chains saw the same minibatches: they share that noise and are not "
                "independent. Effective sample sizes are corrected for it; R-hat and errors over "
                "chains are too favourable. Give a DataLoader over an indexable dataset, or "
                "tensors."
            )
        if self.adapting:
            found.append(
                "The metric was still adapting while draws were kept, which biases them (by up "
                "to a standard deviation or more with few data per weight): give burn_in, after "
                'which it is frozen, and keep the default adapt="burn-in".'
            )
        return found

    def _swaps(self) -> list[str]:
        """How often neighbouring temperatures, or powers of the likelihood, swapped."""
        run = self.advice.run
        found, rungs, kind = run.get("exchange"), run.get("temperature"), "temperatures"
        if run.get("likelihood_power"):
            rungs, kind = run["likelihood_power"], "powers of the likelihood"
        if not found or not rungs:
            return []
        pairs = zip(found["pairs"], found["rates"], strict=True)
        said = ", ".join(f"{rungs[c]:g} and {rungs[d]:g} {rate:.0%}" for (c, d), rate in pairs)
        return [f"Swaps between {kind}: {said} of the proposals."]

    def trace_plot(self, *, count: int = 4) -> Any:
        """The numbers that mix worst, along the draws: a matplotlib figure. Healthy traces of
        different chains lie on top of each other and show no trend."""
        figure, panels = self._panels(count)
        for axes, name, values in panels:
            for chain, line in zip(self.healthy, values, strict=True):
                axes.plot(line, linewidth=0.8, label=f"chain {chain}")
            axes.set(title=name, xlabel="draw")
        panels[0][0].legend(fontsize="small")
        return figure

    def rank_plot(self, *, count: int = 4) -> Any:
        """Of every chain, how many of its draws fall in each range of ranks among all draws: a
        matplotlib figure. Flat histograms, at the dashed line, are healthy."""
        figure, panels = self._panels(count)
        for axes, name, values in panels:
            counts = rank_counts(values)
            for chain, line in zip(self.healthy, counts, strict=True):
                axes.step(range(counts.shape[1]), line, where="mid", label=f"chain {chain}")
            expected = values.shape[1] / counts.shape[1]
            axes.axhline(expected, color="0.5", linestyle="--", linewidth=1)
            axes.set(title=name, xlabel="range of ranks", ylabel="draws", ylim=(0, None))
        panels[0][0].legend(fontsize="small")
        return figure

    def _panels(self, count: int) -> tuple[Any, list[tuple[Any, str, Array]]]:
        """A figure, and a panel of it, name and values (chain, draw) of the worst numbers."""
        worst = np.argsort(self.ess)[: max(0, count)]
        if not len(worst):
            raise ValueError("nothing to plot: give a count of at least 1")
        figure = new_figure(figsize=(7, 1.8 * len(worst)))
        axes = figure.subplots(len(worst), 1, squeeze=False)[:, 0]
        named = [(f"prediction {k}", self.mixing.values[:, :, k]) for k in worst]
        return figure, [(panel, *one) for panel, one in zip(axes, named, strict=True)]

    def __repr__(self) -> str:
        found = f"{len(self.verdicts)} verdicts" if self.verdicts else "nothing suspicious"
        return f"Diagnosis({self.chains} chains of {self.draws} draws, {self.mixing}; {found})"

    def __str__(self) -> str:
        lines = [self._heading, *self._measured(), *(self.verdicts or [FINE])]
        if self.scores is not None:
            lines += [self._answer, str(self.scores)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [line.removesuffix(".").split(": ", 1) for line in self._measured()]
        page = shown(self._heading, rows, self.verdicts or [FINE])
        if self.scores is None:
            return page
        return f"{page}{shown(self._answer)}{self.scores._repr_html_()}"

    @property
    def _heading(self) -> str:
        return f"Convergence of {self.chains} chains of {self.draws} draws each:"

    @property
    def _answer(self) -> str:
        answer = "yes" if self.usable else "not as they are"
        return f"Are the predictions usable? {answer}; on held-out data:"

    def _measured(self) -> list[str]:
        """What was followed and how it mixes, each after its name."""
        tau = self.mixing.autocorrelation_time
        steps = "" if self.thin is None else f", or {tau * self.thin:.0f} steps"
        lines = [
            f"Predictions: {self.mixing}; autocorrelation time {tau:.1f} draws{steps}.",
        ]
        if self.chains > 1:
            lines.append(
                f"Distance between chains: up to {self.distances.max():.2f} standard deviations."
            )
        lines += [f"Away from the data, {name}: {found}." for name, found in self.beyond.items()]
        lines += [f"Parameter {name}: {found}." for name, found in self.parameters.items()]
        if self.noise is not None:
            lines.append(f"Noise level learned by the chains: {self.noise}.")
        lines += self._swaps()
        if self.kinetic is None:
            lines.append(
                "Effective temperature of a step: not measured in a run this short, or with these "
                "dynamics; Langevin.effective_temperature(data) measures it or says why not."
            )
        elif self.kinetic.temperature is not None:
            lines.append(_temperature("Effective temperature of a step", self.kinetic.temperature))
        if self.configurational is not None:
            lines.append(
                _temperature("Temperature of the samples", self.configurational.temperature)
            )
        return lines


def _temperature(what: str, reading: Reading) -> str:
    if reading.known:
        return f"{what} (1 is right): {reading}."
    return f"{what}: no reading, its error {reading.error:.2g} exceeds it. Keep more draws."


def diagnose(
    predictions: Tensor,
    diverged: dict[int, int],
    *,
    parameters: Mapping[str, Tensor] | None = None,
    beyond: Mapping[str, Tensor] | None = None,
    least: float = 0.0,
    shared: bool = False,
    **about: Any,
) -> Diagnosis:
    """From predictions of the healthy chains at the inputs given, (chain, draw, input, ...), and
    ``beyond`` them by kind, and the parameters to look at, each (chain, draw, ...). Predictions
    that move by less than ``least`` are left out. ``about``: other fields of a ``Diagnosis``."""
    found = mixing(predictions, shared=shared, least=least)
    return Diagnosis(
        mixing=found,
        diverged=diverged,
        distances=chain_distances(found.values),
        parameters=_moving(parameters or {}, shared, 0.0),
        beyond=_moving(beyond or {}, shared, least),
        shared=shared,
        **{"healthy": list(range(len(predictions)))} | about,
    )


def _moving(values: Mapping[str, Tensor], shared: bool, least: float) -> dict[str, Mixing]:
    """The mixing of everything that moves."""
    found = {}
    for name, one in values.items():
        with contextlib.suppress(StillError):
            found[name] = mixing(one, shared=shared, least=least)
    return found


def rank_counts(values: Array, *, bins: int = 20) -> Array:
    """(chain, bin): how many draws of a chain have a rank in each of equal ranges.

    >>> rank_counts(np.array([[1.0, 2.0], [3.0, 4.0]]), bins=2)
    array([[2., 0.],
           [0., 2.]])
    """
    chains, draws = values.shape
    bins = min(bins, draws)
    order = values.ravel().argsort(kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    where = (rank * bins // len(order)).reshape(chains, draws)
    counts = [np.bincount(row, minlength=bins) for row in where]
    return np.array(counts, dtype=np.float64)
