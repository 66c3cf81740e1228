"""The recipe: decides everything about a run that was left open, by short runs on the data.

Imports everything below it; langevin and up import it.
"""
