"""From a table to a predictive distribution and back: the one recipe behind the estimators and the
command line's train, predict and evaluate.

    survey, features, target -> recipe (outcome, candidates, crossvalidation, weighing)
        -> predictive -> quality, predictions

A run is a folder: ``run.json`` (columns, classes, settings, and what was done to the table),
``learned/`` (posteriors and their weights) and ``quality.json`` (scores on held-out rows). Nothing
in it is a pickle, and ``predict`` needs nothing else.

Imports langevin and what it needs from below; experiments and up import it.
"""
