"""The UCI regression protocol (Hernández-Lobato & Adams 2015), with one untuned setting for all.

``data`` has the tables and their splits, ``run`` fits and scores, ``table`` sets the figures beside
published ones.
"""
