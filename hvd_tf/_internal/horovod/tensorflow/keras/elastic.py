# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.keras.elastic`."""

from hvd_tf.keras.elastic import *
