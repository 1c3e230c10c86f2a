# SPDX-License-Identifier: Apache-2.0
"""What is private in the loss scaling of TF 1: where it looks at gradients."""

from __future__ import annotations

import functools
from typing import Any, Optional

from hvd_tf._internal.compat import v1


@functools.cache
def patch_loss_scaling_of_graphs(marker: Any) -> None:
    """Have a dynamic loss scale follow reduced gradients only. Does nothing the second time.

    Around an optimizer of the class `marker`, MixedPrecisionLossScaleOptimizer calls
    `apply_within`. Else the scale would follow what this rank has added up so far.
    """
    scaling = v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    original = scaling.apply_gradients

    @functools.wraps(original)
    def apply_gradients(
        self: Any, grads_and_vars: Any, global_step: Any = None, name: Optional[str] = None
    ) -> Any:
        if not isinstance(self._optimizer, marker) or not self._doing_dynamic_loss_scaling():
            return original(self, grads_and_vars, global_step, name)
        pairs = list(grads_and_vars)
        return self._optimizer.apply_within(
            pairs, global_step, name, lambda **names: original(self, pairs, global_step, **names)
        )

    scaling.apply_gradients = apply_gradients
