# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.data`, the glue to tf.data service, is not offered. hvd_tf.data is not it."""

raise ImportError(
    "horovod.tensorflow.data (datasets from a tf.data service) is not offered: call "
    "tf.data.experimental.service itself, or let hvd_tf.data give each rank its share of the files"
)
