# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.functions`."""

from hvd_tf._internal.objects import allgather_object as allgather_object
from hvd_tf._internal.objects import broadcast_object as broadcast_object
from hvd_tf._internal.objects import broadcast_object_fn as broadcast_object_fn
from hvd_tf._internal.variables import broadcast_global_variables as broadcast_global_variables
from hvd_tf._internal.variables import broadcast_variables as broadcast_variables
