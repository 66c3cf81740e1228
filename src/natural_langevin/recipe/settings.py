"""Settings: every constant of the recipe, with the reason beside it.

    Langevin(model, likelihood, recipe=replace(Settings(), metric=Metric(few_weights=0)))

is the recipe with another constant. Those that a run needs are stored in its ``Plan`` (``Descent``,
``EndRule``); ``rules`` explains how they are used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from natural_langevin.posterior.plan import Descent, EndRule
from natural_langevin.run.problem.starts import Fitted
from natural_langevin.run.time_limit import USUAL, Time


@dataclass(frozen=True)
class Metric:
    """The default metric."""

    #: Up to here a dense matrix costs no more than a diagonal one: operator calls are what is paid
    #: for, and correlated inputs slow a diagonal metric down.
    few_weights: int = 40
    #: Whether one whose rate is open averages all of burn-in (``rules.averaged``): one of its last
    #: batches alone made eight schools' tau many times too wide.
    averages: bool = True
    #: Its statistics are taken at every so many steps.
    every: int = 1


@dataclass(frozen=True)
class Batch:
    """Rows of a minibatch."""

    #: A part 1 / ``part`` of the rows: the heat of minibatches allows as large steps then as the
    #: integrator does. All rows where an epoch would be one minibatch, and the others left out.
    part: int = 5
    #: Below, operator calls are what is paid for; above, chains come no further per row.
    fewest: int = 100
    most: int = 500


@dataclass(frozen=True)
class StepSize:
    """Step size eta and friction a: see ``rules`` and ``slowness``."""

    friction: float = 0.1
    #: eta lambda. The integrator is stable up to 4, and lambda grows by 4 to 10 when chains move on
    #: under a frozen metric.
    steepness: float = 0.1
    #: The temperature that minibatches may add, where single curvatures are not known.
    heat: float = 0.1
    #: The largest, the one where no curvature can be measured, and one to measure times with.
    largest: float = 0.3
    fallback: float = 1e-3
    first: float = 1e-2
    #: Up to so many weights all curvatures are measured one by one, a product each.
    most_weights: int = 100
    #: The temperature that minibatches add there: in the mean, and in the steepest direction.
    mean_heat: float = 0.04
    most_heat: float = 0.1
    #: Of networks: the curvature that is damped critically, and the least friction. What only the
    #: prior sees has the curvature 1; what the metric's missing correlations make slow is below it.
    damped: float = 0.25
    least_friction: float = 0.01
    #: Relaxation times of the slowest direction in a run, a third of them burn-in: 40 of every
    #: chain leave errors of .1 sd.
    relaxations: int = 60
    #: Effective draws of such a run, where the weights themselves are asked for: a tenth of a
    #: deviation is two errors of the worst mean. Of 100 it is one, and reference posteriors were up
    #: to .19 off in minibatches.
    ess: float = 400.0
    #: So many frictions are compared, from the usual one down in factors of 2^(-1/2).
    frictions: int = 21

    def compared(self) -> list[float]:
        """The frictions that are compared."""
        return [self.friction * 2 ** (-n / 2) for n in range(self.frictions)]


@dataclass(frozen=True)
class Pilot:
    """The short run at whose end curvature and heat are measured, by the descent's minibatches:
    as good as larger ones, and cheaper."""

    chains: int = 2
    #: Curvature is measured after each, and decides the step size up to the next.
    steps: tuple[int, ...] = (1, 50, 150, 500)
    #: It ends sooner where the last two measurements agree to this part; and after these steps
    #: where operations are spared, or more would take this part of a trial's: tables gain nothing
    #: by 500 steps, MNIST's curvature grows sixfold in them.
    agree: float = 0.25
    fewest: int = 50
    part_of_trial: float = 0.25
    #: Lanczos iterations: lambda is then known to a few per cent, from below.
    iterations: int = 8
    #: Rows on which curvature is measured; fewer where a step takes more operations than these.
    rows: int = 1000
    costly_rows: int = 250
    costly_step: float = 8e7


@dataclass(frozen=True)
class Trial:
    """Length and number of chains of a trial: a wide prior has more solutions than one chain finds,
    and the run that follows has several chains."""

    steps: int
    chains: int
    draws: int
    folds: int
    rounds: int = 1  # with the scales in question alone from the second one on

    def affordable(self, work: float, most: float) -> Trial | None:
        """The same with half the rounds or steps, and then with fewer chains, where it would take
        more than ``most`` operations; None where one chain is too many. ``work``: of a step with
        one chain on every fold."""
        trial = self
        if work * self.steps * self.rounds * self.chains > most:
            fewer = self.rounds > 1
            trial = replace(self, **{"rounds": 1} if fewer else {"steps": self.steps // 2})
        chains = int(most / (work * trial.steps))
        return replace(trial, chains=min(chains, self.chains)) if chains else None

    def on_enough(self, rows: int, enough: int) -> Trial:
        """The same with folds held out in turn only until ``enough`` of the rows have been: where
        steps cost much.

        >>> [Trial(300, 2, 15, 3).on_enough(rows, 200).folds for rows in (100, 400, 1000)]
        [3, 2, 1]
        """
        return replace(self, folds=min(self.folds, -(-enough // max(1, rows // self.folds))))


@dataclass(frozen=True)
class PriorTrial:
    """The trial of the prior's scales on held-out rows: see ``prior_trial``."""

    #: Variances in units of the default's, and the factor between two of them.
    scales: tuple[float, ...] = (0.2, 1.0, 5.0, 25.0)
    factor: float = 5.0
    #: By so many nats per row, and so many errors of that, a scale is clearly behind the best.
    behind: float = 0.02
    errors: float = 2.0
    #: Nats that a row counts at most, above the median row: without it two outliers among 200 rows
    #: chose a prior under which nothing was predicted.
    most_above: float = 10.0
    folds: int = 3
    #: Fewer rows rank scales by chance.
    fewest_rows: int = 40
    #: Rows of a fold that are held out at most: more would not tell more.
    most_held_out: int = 1333
    #: With an engine, and without one.
    native: Trial = Trial(300, 4, 10, folds=3, rounds=2)
    eager: Trial = Trial(300, 2, 15, folds=3)
    #: Where a step costs much: one third of the rows is held out, once.
    costly: Trial = Trial(150, 1, 15, folds=1)
    #: Without an engine, folds are held out in turn until so many rows have been.
    enough_held_out: int = 200
    #: Rounds of its descent: chains that have come equally far are compared.
    descent_rounds: int = 4

    def affordable(self, count: float) -> tuple[float, ...]:
        """The scales of which so many can be tried, the usual one first, and then wider ones: with
        one alone, the trial calibrates.

        >>> PriorTrial().affordable(0.5), PriorTrial().affordable(3.7)
        ((1.0,), (1.0, 5.0, 25.0))
        """
        usual = self.scales.index(1.0)
        first = self.scales[usual:] + self.scales[:usual]
        return tuple(sorted(first[: max(1, int(count))]))


@dataclass(frozen=True)
class Sharpness:
    """The power of class probabilities: see ``posterior.calibration``."""

    #: Of the prior of its logarithm, and the nats on held-out labels below which it stays 1.
    deviation: float = 0.2
    least_gain: float = 2.0


@dataclass(frozen=True)
class Budget:
    """The limit of a run whose length was not given."""

    work: float  # operations of all its steps
    fewest: int  # steps that it has whatever they cost
    relaxations: int  # so many relaxation times it wants to be long
    descent: float  # operations of a chain's descent, which has one round whatever it costs
    trial: float  # operations of a trial of the prior's scales
    predictions: float  # operations of predicting ``Cost.predicted`` rows
    spares: bool  # whether a search is short where steps cost much
    engine: bool = True  # False: every operation is a call of torch on a CPU


@dataclass(frozen=True)
class Cost:
    """Limits of runs: some tens of seconds. See ``cost``."""

    #: Linear layers with an engine, or models of few numbers: 10^10 operations per second and core.
    usual: Budget = Budget(2e11, 2_000, 150, 3e11, 1.2e11, 1.5e11, spares=False)
    #: Convolutions with an engine: every weight is used many times.
    places: Budget = Budget(4e11, 300, 150, 2e10, 1.2e11, 1.5e11, spares=True)
    #: Without an engine on a CPU: a few 10^9.
    eager: Budget = Budget(1.5e11, 300, 50, 6e10, 5e10, 1.5e11, spares=True, engine=False)
    #: On a GPU, at some 10^13 operations per second; and with layers that use every weight many
    #: times, at some 10^12.
    gpu: Budget = Budget(2e14, 2_000, 150, 5e14, 4e13, 5e13, spares=False)
    gpu_places: Budget = Budget(5e13, 2_000, 150, 1.2e14, 5e12, 5e13, spares=True)
    #: Epochs that a run has at least, where they take no more than so many times its budget.
    epochs: int = 10
    most_budgets: int = 10
    #: Rows by which predictions are counted, and draws of a chain that are kept: fewer where so
    #: many would cost too much to predict with.
    predicted: int = 10_000
    fewest_draws: int = 20
    most_draws: int = 200


@dataclass(frozen=True)
class Length:
    """Steps of a run whose length was not given: see ``run_length``."""

    #: Whether the log warns that a run is too short for its slowest direction: that is for those
    #: who chose the network, and can choose another metric. Tables are asked for predictions.
    warns: bool = True
    fewest: int = 2_000
    most: int = 50_000
    #: So many times as many by the engine on a CPU, or of few weights, where chains do not agree or
    #: lack draws.
    unmixed: int = 5
    #: Where every step is a few milliseconds of operator calls, whatever the network's size.
    most_eager: int = 4_000
    #: How often a run that loses chains begins again with a tenth of the step. Classes that are
    #: easily told apart have wide priors and no gradients but at their margins: what a pilot
    #: measures between two visits there says nothing of them, and with a metric frozen between two
    #: a single row can throw a chain away by steps a hundredth as large.
    attempts: int = 3
    #: The most steps of a run with a target, in units of what it would have without one.
    until: int = 10


@dataclass(frozen=True)
class Cheap:
    """What changes where the budget has so many ``steps`` of layers that the engine knows: a run
    can afford to be exact. Distances to NUTS are in lab/notes/audit.md."""

    steps: int = 225_000
    #: With 0.1, a network that learns its noise has predictive deviations up to 2.2 times too wide.
    steepness: float = 0.05
    #: A unit that was steep in burn-in and no longer is has less curvature than the prior gives:
    #: with 1/4 a ring's means are .11 sd off, however long the run; with 1/64 chains broke.
    damped: float = 0.0625
    #: Effective draws of what is worst, where targets are real: a tenth of a deviation far outside
    #: the data is many of the noise's, and with 100 draws the NLL of such rows is .1 to .3 above
    #: NUTS's. Probabilities are bounded.
    ess: float = 300.0
    #: In place of ``Length.unmixed``: 1-50-1 was .088 sd off after 250,000 steps, and .076 after
    #: 450,000.
    unmixed: int = 9


@dataclass(frozen=True)
class Search:
    """The grid of step sizes of ``step_size="auto"`` for other dynamics: see
    ``step_size``."""

    #: Candidates, half a decade apart, downwards from the largest (the paper's grids, wider).
    candidates: int = 8
    spacing: float = 10**-0.5
    #: At most this part of the run's steps, and of its chain-steps (candidates are chains).
    part_of_steps: float = 0.1
    part_of_work: float = 0.2
    fewest_steps: int = 50
    most_steps: int = 2000
    #: Iterates that a candidate is scored by, and data that it is scored on.
    draws: int = 20
    held_out: float = 0.2
    most_held_out: int = 1000
    #: Folds are held out in turn until so many rows have been: 40 rows rank candidates by chance.
    enough_held_out: int = 200
    #: How often the grid is made longer where its edge is best, and by how many candidates.
    extensions: int = 1
    extension: int = 4
    fewest_data: int = 10


@dataclass(frozen=True)
class Settings:
    """Every constant of the recipe."""

    #: A network has learned something where shuffled inputs, or random weights, raise its loss by
    #: this part; on so many rows, against the median of so many random starts.
    start: Fitted = Fitted(part=0.5, random_starts=5, rows=300)
    #: Rounds twice as long each, as many as ``Budget.descent`` or the clock allow, until one lowers
    #: the loss by less than a tenth of a nat: a fifth of the rows, 2,000 at most, is looked at six
    #: times a round, if there are five. Steps of .02 in every weight travel far enough, with fewer
    #: than a thousand weights; RMSProp's memory is that of 20 batches.
    #: Minibatches are small, where that is three epochs in the first round: larger ones come no
    #: further.
    descent: Descent = Descent(
        rounds=(300, 600, 1200, 2400, 4800, 9600), enough=0.1, looks=6, held_out=0.2,
        fewest_rows=5, most_held_out=2000, friction=0.1, memory=0.05, length=0.02, small=1000,
        few=10, batch=100, epochs=3,
    )  # fmt: skip
    #: Enough for R-hat; what ensembles gain by more starts falls as one over their number.
    chains: int = 4
    metric: Metric = Metric()
    batch: Batch = Batch()
    step_size: StepSize = StepSize()
    pilot: Pilot = Pilot()
    prior: PriorTrial = PriorTrial()
    sharpness: Sharpness = Sharpness()
    cost: Cost = Cost()
    length: Length = Length()
    #: A quarter of a run of open length, and 2,000 steps, is all where its chains agree at 32 rows
    #: and around them, with 100 effective draws in all of what is worst: means are known there to a
    #: tenth of a deviation, and an interval for 95 % of n draws holds .95 n / (n + 1) of what they
    #: are drawn from (with 50: .92, beyond the data of 1-8-1). Otherwise it is burn-in of a part
    #: five times as long, and so forth while there are steps: draws that a short burn-in's metric
    #: goes on with were thrown to where the data are hundreds of nats less likely. A metric counts
    #: for 25 batches in the part that follows.
    end: EndRule = EndRule(
        first_part=4, first_steps=2_000, growth=5, rows=32, remembered=25, ess=100.0
    )
    search: Search = Search()
    time: Time = USUAL
    #: None: nothing changes.
    cheap: Cheap | None = Cheap()

    def where_cheap(self, *, discrete: bool) -> Settings:
        """These constants where steps are cheap; ``discrete``: whether the targets are."""
        if self.cheap is None:
            return self
        size = replace(self.step_size, steepness=self.cheap.steepness, damped=self.cheap.damped)
        length = replace(self.length, unmixed=self.cheap.unmixed)
        end = self.end if discrete else replace(self.end, ess=self.cheap.ess)
        return replace(self, step_size=size, length=length, end=end)
