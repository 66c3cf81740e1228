"""Diagnostics: has a chain converged, does it explore, and is its noise the right size?

Imports data, likelihoods, priors, statistics, preconditioners, dynamics, execution and metrics;
posterior and up import it.

* ``function_space``: R-hat, effective sample size, distances between chains
* ``kinetic``: effective temperature of a step, noise against drift; minibatch noise
* ``configurational``: temperature of the samples; the step-size bias indicator
* ``funnel``: detects a parameter that scales others, with the remedy
* ``halved``: a run against the same at half the step size
* ``exact_reference``: a posterior against Metropolis-adjusted chains (``fidelity``)
* ``thrown``: detects chains that steps threw out of the posterior for a while
* ``limits``: values of the diagnostics for chains that agree
* ``advice``: what to do next
* ``verdicts``: the result in words, with remedies
"""

from natural_langevin.diagnostics.advice import Advice
from natural_langevin.diagnostics.configurational import Configurational
from natural_langevin.diagnostics.exact_reference import Fidelity, fidelity
from natural_langevin.diagnostics.function_space import (
    Mixing,
    import_arviz,
    mixing,
    some_components,
)
from natural_langevin.diagnostics.funnel import Funnel, funnel
from natural_langevin.diagnostics.halved import Halved
from natural_langevin.diagnostics.kinetic import Kinetic
from natural_langevin.diagnostics.reading import Reading
from natural_langevin.diagnostics.thrown import Thrown, thrown
from natural_langevin.diagnostics.verdicts import Diagnosis, Noise, diagnose

__all__ = [
    "Advice",
    "Configurational",
    "Diagnosis",
    "Fidelity",
    "Funnel",
    "Halved",
    "Kinetic",
    "Mixing",
    "Noise",
    "Reading",
    "Thrown",
    "diagnose",
    "fidelity",
    "funnel",
    "import_arviz",
    "mixing",
    "some_components",
    "thrown",
]
