# SPDX-License-Identifier: Apache-2.0
"""`horovod.common.elastic`."""

from hvd_tf.elastic import ObjectState as ObjectState
from hvd_tf.elastic import State as State
