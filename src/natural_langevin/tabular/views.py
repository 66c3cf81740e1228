"""Ways to see a table: what is sampled of the target, what networks are given, and which network.

A view makes a sampler of it. Everything else (start, metric, prior's scale, step size, batch and
length) is left to ``Langevin``, unless the settings say it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from natural_langevin import priors
from natural_langevin.langevin import Langevin
from natural_langevin.recipe import open_settings, rules
from natural_langevin.tabular.inputs import Inputs
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.settings import AUTO, PRECONDITIONERS, Settings

#: The variance of the prior "fan_in", divided by a layer's inputs; it is that of a bias.
FAN_IN = 3.0


@dataclass(frozen=True, eq=False)
class View:
    """``settings``: with the network's layers (none: a linear model) and activation."""

    outcome: Outcome
    inputs: Inputs
    settings: Settings

    def with_layers(self, *hidden: int) -> View:
        """The same with another network."""
        return replace(self, settings=replace(self.settings, hidden=hidden))

    def with_activation(self, name: str) -> View:
        """The same with another activation."""
        return replace(self, settings=replace(self.settings, activation=name))

    @property
    def network(self) -> nn.Module:
        """A fresh, untrained network."""
        return self.outcome.network(self.inputs.width, self.settings)

    def targets(self, y: Tensor) -> Tensor:
        """Targets as they are sampled."""
        encoded = self.outcome.encode(y)
        return encoded if self.outcome.classes else encoded.to(self.settings.dtype)

    def sampler(
        self,
        *,
        chains: int,
        seed: int,
        num_data: int | None,
        device: str | None,
        prior_scale: float | None = None,
        network_of: Langevin | None = None,
    ) -> Langevin:
        """A sampler by the recipe; ``prior_scale``: the prior's, where it is known already;
        ``network_of``: another of this view, whose network it shares."""
        settings = self.settings
        prior = self._prior()
        if prior is None and prior_scale is not None:
            prior = rules.prior(prior_scale)
        usual = settings.preconditioner == Settings.preconditioner
        temperature = settings.temperature
        return Langevin(
            self.network,
            self.outcome.likelihood,
            prior=prior,
            preconditioner=None if usual else PRECONDITIONERS[settings.preconditioner](),
            step_size=settings.step_size,
            temperature=1.0 if isinstance(temperature, str) else temperature,
            chains=chains,
            num_data=num_data,
            seed=seed,
            device=device,
            recipe=open_settings.for_tables(),
            calibrate=False,  # ``weighing`` does, for all views together
            network_of=network_of,
        )

    def _prior(self) -> priors.Prior | None:
        variance = self.settings.prior_variance
        if variance == AUTO:
            return None
        if variance == "learned":
            return priors.NormalInverseGamma()
        if isinstance(variance, str):
            return priors.FanIn(math.sqrt(FAN_IN))
        return priors.Gaussian(variance=float(variance))

    def __str__(self) -> str:
        layers = self.settings.layers
        network = f"{len(layers)} hidden layer{'s' if len(layers) > 1 else ''}"
        if layers and self.settings.activation == "tanh":
            network += ", tanh"
        words = [describe(self.outcome), str(self.inputs), network if layers else "linear"]
        return ", ".join(filter(None, words))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "outcome": self.outcome.to_json(),
            "inputs": self.inputs.to_json(),
            "settings": self.settings.to_json(),
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> View:
        """As ``to_json`` wrote it."""
        return View(
            Outcome.from_json(value["outcome"]), Inputs.from_json(value["inputs"]),
            Settings.from_json(value["settings"]),
        )  # fmt: skip


def describe(outcome: Outcome) -> str:
    """An outcome in words.

    >>> describe(Outcome("regression", "varying", log=True))
    'noise that depends on the inputs, logarithm of the target'
    """
    noise = {
        "constant": "noise of one size",
        "varying": "noise that depends on the inputs",
        "hurdle": "zero or a count" if outcome.whole else "zero or an amount",
        "poisson": "Poisson counts",
        "overdispersed": "overdispersed counts",
        "categorical": "classes",
        "ordinal": "ordered classes",
        "bernoulli": "labels, yes or no each",
    }[outcome.noise]
    return noise + (", logarithm of the target" if outcome.log else "")
