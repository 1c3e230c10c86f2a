# SPDX-License-Identifier: Apache-2.0
"""`horovod.common.process_sets`."""

from hvd_tf._internal.registration import add_process_set as add_process_set
from hvd_tf._internal.registration import remove_process_set as remove_process_set
from hvd_tf.process_sets import ProcessSet as ProcessSet
from hvd_tf.process_sets import global_process_set as global_process_set
from hvd_tf.process_sets import ids_and_ranks as get_process_set_ids_and_ranks

__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "remove_process_set",
]
