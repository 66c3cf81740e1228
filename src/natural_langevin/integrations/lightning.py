"""Lightning: a callback that collects what ``NaturalLangevin`` draws.

    class Classifier(lightning.LightningModule):
        def training_step(self, batch, index):
            x, y = batch
            return F.cross_entropy(self.network(x), y)

        def configure_optimizers(self):
            return NaturalLangevin(self.network, Categorical(), num_data=N, lr=1e-3)

    collect = CollectPosterior(burn_in=500, thin=50)
    lightning.Trainer(callbacks=[collect], max_steps=5000).fit(Classifier(), loader)
    collect.posterior.predict(x)

Give the optimizer the very module that ``training_step`` calls. Lightning's checkpoints hold the
iterates kept so far beside the optimizer's state: ``trainer.fit(..., ckpt_path=...)`` goes on with
the same chain. Validation passes change nothing. ``accumulate_grad_batches`` is one update of the
larger batch; ``precision="bf16-mixed"`` works; ``gradient_clip_val`` is a departure from the
posterior, as everywhere.
"""

from __future__ import annotations

from typing import Any

from natural_langevin._internal.extras import needing
from natural_langevin.integrations.collect_posterior import PosteriorCallback

with needing("the Lightning callback needs lightning", "lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer


class CollectPosterior(PosteriorCallback, Callback):
    """For ``Trainer(callbacks=[...])``; ``posterior`` at any time after training has begun.

    Logs ``posterior/kept``, the number of iterates held, with the module's own logger."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Here, not earlier: the optimizers exist and a checkpoint's state is in them.
        self.begin(trainer.optimizers)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        pl_module.log("posterior/kept", float(len(self.kept)), on_step=True, batch_size=1)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.log_divergence(exception)

    def state_dict(self) -> dict[str, Any]:
        if self._collector is None:
            return {} if self._pending is None else {"collector": self._pending}
        return {"collector": self._collector.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning calls this before there is an optimizer: kept until training begins."""
        self._pending = state_dict.get("collector")
