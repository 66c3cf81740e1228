"""Callbacks for other people's training loops, which collect what ``optim.NaturalLangevin`` draws.

Imports posterior, run and optim; nothing imports it.

* ``natural_langevin.integrations.lightning.CollectPosterior`` for a Lightning ``Trainer``
* ``natural_langevin.integrations.transformers.CollectPosterior`` for a Transformers ``Trainer``

* ``natural_langevin.integrations.tensorboard.TensorBoard`` for ``Langevin.sample(callback=...)``

The first two keep iterates by burn-in and thinning, go on from the framework's own checkpoints, and
hand out a ``Posterior``. Each module needs its package; importing this one needs none.
"""
