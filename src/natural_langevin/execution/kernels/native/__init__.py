"""The native engine: whole steps of a multilayer perceptron on the CPU, in C.

Imports data, likelihoods, priors, statistics, preconditioners and dynamics; sampling and up import
it.

``trace`` finds out whether a network is one, ``engine`` runs its steps, ``build`` has the library,
``layout`` mirrors the C structures. The C sources lie beside them; ``engine.c`` is the one to read.
"""
