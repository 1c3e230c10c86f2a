# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.gradient_aggregation_eager`: the same for eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_tf._internal.keras.local_aggregation import LocalGradientAggregationHelper
from hvd_tf.process_sets import global_process_set


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """`LocalGradientAggregationHelper` with the arguments that this one has in Horovod."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Any],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: Any = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        """Args as for `LocalGradientAggregationHelper`."""
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
