# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.gradient_aggregation`: sums of gradients over several passes."""

from hvd_tf._internal.keras.local_aggregation import LocalGradientAggregationHelper
