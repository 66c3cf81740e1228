"""Sampling: one run, from the check of its arguments to the samples it keeps.

Imports everything below it; distributed and up import it.
"""
