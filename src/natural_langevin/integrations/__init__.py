"""Integrations: training loops, experiment trackers, model hubs.

Imports likelihoods, metrics, posterior, run and optim; nothing imports it.

* ``natural_langevin.integrations.lightning.CollectPosterior`` for a Lightning ``Trainer``
* ``natural_langevin.integrations.transformers.CollectPosterior`` for a Transformers ``Trainer``

These two keep iterates of ``optim.NaturalLangevin`` by burn-in and thinning, go on from the
framework's own checkpoints, and hand out a ``Posterior``.

* ``natural_langevin.integrations.tensorboard.TensorBoard``, ``wandb.WeightsAndBiases`` and
  ``mlflow.MLflow`` for ``Langevin.sample(callback=...)``
* ``natural_langevin.integrations.botorch.PosteriorModel`` for Bayesian optimisation with BoTorch
* ``natural_langevin.integrations.hub``: a posterior as a repository of the Hugging Face hub

Each module needs its package; importing this one needs none.
"""
