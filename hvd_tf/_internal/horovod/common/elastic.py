# SPDX-License-Identifier: Apache-2.0
"""`horovod.common.elastic`."""

from hvd_tf.elastic import ObjectState as ObjectState
from hvd_tf.elastic import State as State
from hvd_tf.elastic.running import run_fn as run_fn
from hvd_tf.exceptions import HorovodInternalError as HorovodInternalError
from hvd_tf.exceptions import HostsUpdatedInterrupt as HostsUpdatedInterrupt
