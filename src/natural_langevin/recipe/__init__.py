"""The recipe: chooses every option of a run that was not given, by short runs on the data.

Imports everything below it; langevin and up import it.
"""
