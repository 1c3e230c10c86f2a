# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.functions`."""

from hvd_tf.functions import allgather_object as allgather_object
from hvd_tf.functions import broadcast_global_variables as broadcast_global_variables
from hvd_tf.functions import broadcast_object as broadcast_object
from hvd_tf.functions import broadcast_object_fn as broadcast_object_fn
from hvd_tf.functions import broadcast_variables as broadcast_variables
