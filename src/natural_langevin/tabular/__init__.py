"""From a table to a posterior and back: what the command line's train, predict and evaluate do.

Imports langevin and what it needs from below; cli imports it.

    features, target -> settings -> run (a folder) -> fit -> quality, predictions

A run is a folder: ``run.json`` (columns, standardisation, class names, network, settings),
``posterior/`` (as ``Posterior.save`` writes it) and ``quality.json`` (scores on held-out rows).
Nothing in it is a pickle, and ``predict`` needs nothing else.
"""
