"""Diagnostics: has a chain converged, does it explore, and is its noise the right size?

Imports likelihoods, priors, preconditioners and dynamics; posterior and up import it.

* ``function_space``: R-hat, effective sample size, distances between chains (ArviZ)
* ``kinetic``: effective temperature of a step, noise against drift; minibatch noise
* ``configurational``: temperature of the samples; the step-size bias indicator
* ``halved``: a run against the same at half the step size
* ``limits``: what the diagnostics look like when nothing is wrong
* ``verdicts``: all of it in words, with what to do
"""

from natural_langevin.diagnostics.configurational import Configurational
from natural_langevin.diagnostics.function_space import (
    Mixing,
    import_arviz,
    mixing,
    some_components,
)
from natural_langevin.diagnostics.halved import Halved
from natural_langevin.diagnostics.kinetic import Kinetic
from natural_langevin.diagnostics.reading import Reading
from natural_langevin.diagnostics.verdicts import Diagnosis, diagnose

__all__ = [
    "Configurational",
    "Diagnosis",
    "Halved",
    "Kinetic",
    "Mixing",
    "Reading",
    "diagnose",
    "import_arviz",
    "mixing",
    "some_components",
]
