# SPDX-License-Identifier: Apache-2.0
"""`horovod._keras.callbacks`."""

from hvd_tf.keras.callbacks import *
