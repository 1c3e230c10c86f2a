# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.keras`: `hvd_tf.keras`."""

from horovod.tensorflow.keras import callbacks, elastic
from horovod.tensorflow.mpi_ops import _basics

from hvd_tf.keras import *
