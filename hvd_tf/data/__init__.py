# SPDX-License-Identifier: Apache-2.0
"""Sharded input: each rank's share of files or of a tf.data.Dataset, in equally many steps."""

from hvd_tf.data.sharding import shard
from hvd_tf.data.steps import equal_steps

__all__ = ["equal_steps", "shard"]
