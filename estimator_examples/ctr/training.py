# SPDX-License-Identifier: Apache-2.0
"""Training one of the models as an Estimator. The lines marked `# hvd:` are what hvd_tf asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Optional

import tensorflow as tf
from estimators import tf_estimator
from layers import Sizes
from models import model_fn
from rows import InputFn
from starting import run_config

v1 = tf.compat.v1

# Adagrad's first divisor. Its default of 0.1 would all but freeze rows that few clicks look up.
ACCUMULATOR = 1e-5


@dataclass(frozen=True)
class Settings:
    """A training's settings."""

    model: str = "deepfm"
    """One of models.LOGITS."""
    sizes: Sizes = field(default_factory=Sizes)
    lr: float = 0.025
    """Adagrad's learning rate for one rank."""
    seed: int = 11
    threads: int = 1


def train(
    hvd: ModuleType,
    settings: Settings,
    share: InputFn,
    model_dir: Path,
    steps: Optional[int],
    watch: Sequence[v1.train.SessionRunHook] = (),
    begun: int = 0,
) -> tf_estimator.Estimator:
    """Train on this rank's share for so many steps; None: until the share of the last rank ends.

    begun: the step of rank 0's checkpoint, where there is one.
    """

    def optimizer() -> v1.train.Optimizer:
        rate = hvd.estimator.scale_learning_rate(settings.lr)  # hvd: for size times the batch
        adagrad = v1.train.AdagradOptimizer(rate, initial_accumulator_value=ACCUMULATOR)
        return hvd.DistributedOptimizer(adagrad)  # hvd: averages the gradients over the ranks

    estimator = tf_estimator.Estimator(
        model_fn,
        config=run_config(hvd, model_dir, settings.threads, settings.seed, None),
        params={"model": settings.model, "sizes": settings.sizes, "optimizer": optimizer},
    )
    hooks = [hvd.BroadcastGlobalVariablesHook(0), *watch]  # hvd: all start with rank 0's weights
    if steps is None:
        # hvd: a rank without data joins; the others go on, and all end with the last one's weights
        hooks.append(hvd.estimator.EndTogetherHook(when="last"))
    if steps is None or begun < steps:  # hvd: else rank 0, which has the checkpoint, trains no step
        estimator.train(share, hooks=hooks, max_steps=steps)
    return estimator
