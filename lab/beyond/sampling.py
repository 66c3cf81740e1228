"""The sampling parts: chains of given settings in one run, and what is made of their predictions.

Chains are grouped: ``Group`` is so many chains of one setting, one after the other, and a part's
chains are its groups in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lab.beyond.inputs import ViewScorer, views
from lab.beyond.local import Local
from lab.beyond.protocol import Protocol, Setting
from lab.beyond.running import Ran, advance
from lab.beyond.virial import Virial
from natural_langevin import likelihoods, models, preconditioners, priors, schedules
from natural_langevin._internal.processes import Processes
from natural_langevin.cli.experiments.table1.training import Ensemble
from natural_langevin.data import Dataset
from natural_langevin.dynamics import Integrator
from natural_langevin.langevin import Langevin
from natural_langevin.run import temperature_probe


@dataclass(frozen=True)
class Bench:
    """What every part works with; ``deadline`` is the part's (``time.monotonic``)."""

    protocol: Protocol
    data: Dataset
    device: torch.device
    folder: Path
    compile: bool | str
    deadline: float
    say: Callable[[str], None]

    def part(self, *, final: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Images and labels to train on, and to score: the test set only where all is chosen."""
        d, cut = self.data, len(self.data.train_x) - self.protocol.validation
        both = (
            (d.train_x, d.train_y, d.test_x, d.test_y)
            if final
            else (d.train_x[:cut], d.train_y[:cut], d.train_x[cut:], d.train_y[cut:])
        )
        x, y, scored_x, scored_y = (t.to(self.device) for t in both)
        return x, y, scored_x, scored_y

    def network(self) -> nn.Sequential:
        """The paper's network, for these images."""
        return models.mlp(self.data.train_x.shape[1], self.data.num_classes, self.protocol.hidden)


class Group(NamedTuple):
    """So many chains of one setting."""

    setting: Setting
    chains: int


class Sampled(NamedTuple):
    """Mean probabilities (chain, n, classes) over kept draws, labels, and what was measured."""

    probabilities: Tensor
    labels: Tensor
    ran: Ran
    draws: int
    measured: dict[str, Any]


class _Both:
    """An ensemble and the samples' temperature, from the same iterates."""

    def __init__(self, ensemble: Ensemble, virial: Virial) -> None:
        self.ensemble, self.virial = ensemble, virial

    def tree(self) -> dict[str, Any]:
        """Everything a checkpoint must hold."""
        return {"ensemble": self.ensemble.state(), "virial": self.virial.tree()}

    def keep(self, state: Any) -> None:
        """Takes an iterate."""
        self.ensemble.add(state.params)
        self.virial.keep(state)


def sampler(
    bench: Bench, settings: Sequence[Setting], dynamics: Integrator, num_data: int
) -> Langevin:
    """One chain for every setting, at temperature 1."""
    network, protocol = bench.network(), bench.protocol
    layers = [name for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    prior: dict[str, priors.Prior] = {
        f"{name}.*": priors.Gaussian(torch.tensor([s.variances[k] for s in settings]))
        for k, name in enumerate(layers)
    }
    if any(s.width for s in settings):
        variances, widths = torch.tensor([(s.variances[0], s.width) for s in settings]).unbind(1)
        prior = {f"{layers[0]}.weight": Local(variances, widths)} | prior
    etas = torch.tensor([s.step_size for s in settings])
    damping = torch.tensor([s.damping for s in settings], device=bench.device) / num_data
    return Langevin(
        network,
        likelihoods.Categorical(),
        prior=prior,
        # Steps this long, from a random start, diverge where a rare pixel's weight meets a metric
        # that has not seen it yet: hence ``fresh``, which once the metric stands still is all one.
        preconditioner=preconditioners.QuasiDiagonalFisher(
            fresh=True,
            adapt=protocol.adapt,
            damping=damping,
            # As the paper's, where the metric follows; an average that stops forgets its start.
            decay=None if protocol.adapt == "always" else schedules.polynomial_average(1),
        ),
        dynamics=dynamics,
        step_size=_rising(schedules.polynomial(etas, offset=protocol.offset), protocol.rise),
        temperature=1.0,
        chains=len(settings),
        init="fan_in",
        mean_rate=None,
        seed=protocol.seed,
        device=bench.device,
        compile=bench.compile,
        parallel=None,
    )


def _rising(falls: schedules.Schedule, steps: int) -> schedules.Schedule:
    """``falls``, less in the first ``steps``: a metric that has seen few batches throws a chain far
    from where it learns, and the last layer's weights take thousands of updates to come back."""
    return lambda step: falls(step) * min(1.0, (step + 1) / max(1, steps))


def sample(
    bench: Bench, part: str, groups: Sequence[Group], dynamics: Integrator, *, final: bool
) -> Sampled:
    """Runs the groups' chains as one, until done or until the part's time is over."""
    protocol = bench.protocol
    settings = [g.setting for g in groups for _ in range(g.chains)]
    inputs = [s.inputs for s in settings]
    steps, burn_in, thin = (
        (protocol.steps, protocol.burn_in, protocol.thin)
        if final
        else (protocol.select_steps, protocol.select_burn_in, protocol.select_thin)
    )
    x, y, scored_x, scored_y = bench.part(final=final)
    one = sampler(bench, settings, dynamics, len(x))
    engine, state = one.prepare(
        views(x, y, inputs), steps=steps, batch_size=protocol.batch_size, burn_in=burn_in
    )
    engine.notify = bench.say
    draws = (steps - burn_in) // thin
    noise = [s.noise for s in settings]
    scorer = ViewScorer(one.model, {"scored": (scored_x, scored_y)}, inputs, noise)
    collector = _Both(
        Ensemble(scorer, chains=len(settings), classes=bench.data.num_classes, draws=draws),
        Virial(engine, state.params, draws),
    )
    config = {"part": part, "settings": [s.as_dict() for s in settings]} | protocol.as_dict()
    ran = advance(
        engine, state, collector, steps=steps, burn_in=burn_in, thin=thin,
        folder=bench.folder / part, config=config, deadline=bench.deadline, say=bench.say,
    )  # fmt: skip
    kept = int(collector.ensemble.kept)
    if not kept:
        raise TimeoutError(f"{part}: no draw was kept in its time; run it again to go on")
    measured: dict[str, Any] = {
        "execution": engine.way,
        "virial": _virials(collector.virial, groups),
    }
    if final:
        probe = temperature_probe.measure(engine, ran.state, 4)
        kinetic = temperature_probe.summary(ran.state, probe, Processes(len(settings)))
        measured["kinetic"] = None if kinetic is None else kinetic.as_dict()
    return Sampled(collector.ensemble.mean("scored"), scored_y, ran, kept, measured)


def _virials(virial: Virial, groups: Sequence[Group]) -> list[dict[str, Any] | None]:
    """The samples' temperature, group by group."""
    found, first = [], 0
    for group in groups:
        found.append(virial.reading(slice(first, first + group.chains)))
        first += group.chains
    return found
