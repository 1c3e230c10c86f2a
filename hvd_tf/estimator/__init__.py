# SPDX-License-Identifier: Apache-2.0
"""tf.estimator on many ranks: sharded input, equal steps, evaluation by all ranks together."""

from hvd_tf.estimator.evaluation import evaluate as evaluate

__all__ = ["evaluate"]
