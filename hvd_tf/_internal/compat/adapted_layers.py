# SPDX-License-Identifier: Apache-2.0
"""Keras' Normalization layers, which compute with copies of what they have learned by `adapt`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def refresh_adapted(model: Any) -> None:
    """Have the layers use their variables, which have new values. Nothing in a graph of TF 1.

    The copies are constants of traced steps, so steps with old ones are traced anew. A training
    step is made at once: `fit` may be in its loop.
    """
    if not tf.executing_eagerly():
        return
    changed = [_refresh(layer) for layer in _adapted(model)]
    if not any(changed):
        return
    for name in ("test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
    if getattr(model, "train_function", None) is not None:
        model.make_train_function(force=True)


def _adapted(model: Any) -> list[Any]:
    """Those that are built. One with a given mean has nothing to learn, and no such variables."""
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else []
    return [one for one in layers if hasattr(one, "adapt_mean") and hasattr(one, "finalize_state")]


def _refresh(layer: Any) -> bool:
    """Whether that has changed what the layer computes with."""
    before = layer.mean, layer.variance
    layer.finalize_state()
    # Keras 2 leaves a traced step's own tensors behind where the step has built the layer.
    return not all(
        hasattr(old, "numpy") and np.array_equal(old, new)
        for old, new in zip(before, (layer.mean, layer.variance))
    )
