# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.keras.callbacks`."""

from hvd_tf.keras.callbacks import *
