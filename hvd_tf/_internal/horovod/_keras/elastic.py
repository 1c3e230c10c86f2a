# SPDX-License-Identifier: Apache-2.0
"""`horovod._keras.elastic`."""

from hvd_tf.keras.elastic import *
