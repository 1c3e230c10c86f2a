# SPDX-License-Identifier: Apache-2.0
"""`horovod.keras.callbacks`."""

from hvd_tf.keras.callbacks import *
