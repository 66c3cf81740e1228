"""The scalars of a run for experiment trackers."""

from __future__ import annotations

from natural_langevin.run.look import Look


class Scalars:
    """The numbers of a look by name: every chain's ``loss`` and, where there is one, its
    ``acceptance``; the number of draws ``kept``; and at every ``temperature_every``-th look the
    kinetic ``temperature``, which costs some dozen steps (0: never)."""

    def __init__(self, temperature_every: int) -> None:
        if temperature_every < 0:
            raise ValueError(f"temperature_every must be 0 or more, got {temperature_every!r}")
        self._every, self._looks = temperature_every, 0

    def __call__(self, look: Look) -> dict[str, float]:
        chains = {"loss": look.loss, "acceptance": look.acceptance}
        found = {
            f"{name}/chain {chain}": float(value)
            for name, values in chains.items()
            for chain, value in enumerate([] if values is None else values.tolist())
        }
        found["kept"] = float(look.kept)
        self._looks += 1
        if self._every and self._looks % self._every == 0 and look.temperature is not None:
            found["temperature"] = look.temperature.value
        return found
