# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.keras.elastic`."""

from hvd_tf.elastic import TensorFlowKerasState as TensorFlowKerasState
from hvd_tf.keras.elastic import *
