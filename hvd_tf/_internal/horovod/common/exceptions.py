# SPDX-License-Identifier: Apache-2.0
"""`horovod.common.exceptions`."""

from hvd_tf.exceptions import HorovodInternalError as HorovodInternalError
from hvd_tf.exceptions import HorovodVersionMismatchError as HorovodVersionMismatchError
from hvd_tf.exceptions import HostsUpdatedInterrupt as HostsUpdatedInterrupt
