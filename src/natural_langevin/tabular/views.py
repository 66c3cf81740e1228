"""Ways to see a table: what is sampled of the target and what the networks are given. Held-out rows
choose one, each way having run with one and the same candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from natural_langevin.run.loop import DivergenceError
from natural_langevin.tabular.candidates import Candidate
from natural_langevin.tabular.crossvalidation import Problem
from natural_langevin.tabular.inputs import Inputs
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.weighing import HeldOut, best_scale


@dataclass(frozen=True)
class View:
    """A problem, and how its inputs came about."""

    problem: Problem
    inputs: Inputs

    @property
    def outcome(self) -> Outcome:
        """What is sampled of the target."""
        return self.problem.outcome

    def __str__(self) -> str:
        inputs = f", inputs {self.inputs}" if str(self.inputs) else ""
        tanh = ", tanh" if self.problem.settings.activation == "tanh" else ""
        return describe(self.outcome) + inputs + tanh


@dataclass
class Trial:
    """What a view gave: held-out NLL at its best scale."""

    view: View
    held_out: HeldOut
    candidate: Candidate
    nll: float


class Trials:
    """Runs views with one candidate on the folds, and keeps what they gave."""

    def __init__(self, candidate: Candidate, folds: list[Tensor], y: Tensor) -> None:
        self._candidate, self._folds, self._y = candidate, folds, y
        self._done: list[Trial] = []

    def run(self, view: View) -> None:
        """Tries one more view on the folds; one that diverges at every step size is left out."""
        try:
            held_out, (candidate,) = view.problem.held_out(
                [self._candidate], self._folds, str(view)
            )
        except DivergenceError:
            return
        nll = -best_scale(held_out, view.outcome, self._y[held_out.rows])
        self._done.append(Trial(view, held_out, candidate, nll))

    @property
    def best(self) -> View:
        """The view of the largest held-out density so far."""
        return self._best.view

    @property
    def _best(self) -> Trial:
        if not self._done:
            raise DivergenceError("no kind of noise ran to its end: give a smaller step_size")
        return min(self._done, key=lambda trial: trial.nll)

    def rest(
        self, offered: Sequence[Candidate], otherwise: View
    ) -> tuple[View, HeldOut, list[Candidate]]:
        """The best view (``otherwise``, where none ran), with all candidates run on the folds."""
        if not self._done:
            return otherwise, *otherwise.problem.held_out(offered, self._folds)
        best = self._best
        if len(offered) == 1:
            return best.view, best.held_out, [best.candidate]
        try:
            more, others = best.view.problem.held_out(offered[1:], self._folds)
        except DivergenceError:
            return best.view, best.held_out, [best.candidate, *offered[1:]]
        networks = best.held_out.networks | {k + 1: found for k, found in more.networks.items()}
        return best.view, HeldOut(more.rows, networks), [best.candidate, *others]

    @property
    def reason(self) -> str:
        """Why the best view is the best, in words; "" where there was no choice."""
        if not self._done:
            return ""
        best = self._best
        others = "".join(f"; {t.view} {t.nll:.4g}" for t in self._done if t is not best)
        return f"{best.view} (held-out NLL {best.nll:.4g}{others}); "


def describe(outcome: Outcome) -> str:
    """An outcome in words.

    >>> describe(Outcome("regression", "varying", log=True))
    'noise that depends on the inputs, logarithm of the target'
    """
    noise = {
        "constant": "noise of one size",
        "varying": "noise that depends on the inputs",
        "poisson": "Poisson counts",
        "overdispersed": "overdispersed counts",
        "categorical": "classes",
        "ordinal": "ordered classes",
        "bernoulli": "labels, yes or no each",
    }[outcome.noise]
    return noise + (", logarithm of the target" if outcome.log else "")
