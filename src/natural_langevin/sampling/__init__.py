"""Sampling: one run, from the check of its arguments to the samples it keeps.

Imports execution, diagnostics and posterior; ``langevin`` and experiments import it.
"""
