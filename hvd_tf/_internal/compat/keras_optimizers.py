# SPDX-License-Identifier: Apache-2.0
"""Which optimizers a model of any Keras trains with."""

from __future__ import annotations

from typing import Any

from hvd_tf._internal.compat import is_keras_optimizer


def optimizers_of(model: Any) -> list[Any]:
    """What it was compiled with, then those that are attributes, in the order of their names.

    A `train_step` of the program's own may have one for each part of the model.
    """
    own = getattr(model, "optimizer", None)
    found = list(own) if isinstance(own, (list, tuple)) else [own]
    attributes = getattr(model, "__dict__", {})
    mine = (attributes[name] for name in sorted(attributes))
    found += [one for one in mine if is_keras_optimizer(one)]
    return list({id(one): one for one in found if one is not None}.values())
