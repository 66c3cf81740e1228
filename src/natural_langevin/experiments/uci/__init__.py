"""The UCI regression protocol (Hernández-Lobato & Adams 2015), with one untuned setting for all.

Imports everything below experiments; cli imports it.

``data`` has the tables and their splits, ``run`` fits and scores, ``table`` sets the figures beside
published ones.
"""
