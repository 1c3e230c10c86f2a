# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.sync_batch_norm`."""

from hvd_tf.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
