"""A run: the phases of a plan, from its first step to the posterior of the samples it keeps.

Imports everything below it; recipe and up import it.
"""
