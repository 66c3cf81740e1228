"""Experiments, one folder each: the paper's table, and what goes beyond it. ``runner`` is shared.

Imports everything below it; sklearn and up import it.
"""
