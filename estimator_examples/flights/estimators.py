# SPDX-License-Identifier: Apache-2.0
"""tf.estimator, which TensorFlow 2.16 and later do not have: hvd_tf provides it there."""

from __future__ import annotations

import tensorflow as tf

if not hasattr(tf, "estimator"):
    import hvd_tf as hvd

    hvd.estimator.provide_tf_estimator()

tf_estimator = tf.estimator
