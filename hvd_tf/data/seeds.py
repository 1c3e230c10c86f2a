# SPDX-License-Identifier: Apache-2.0
"""Seeds of shuffles, by rank and epoch. They do not depend on TensorFlow's global seed."""

from __future__ import annotations

from typing import Optional

import numpy as np
import tensorflow as tf

from hvd_tf._internal.compat import v1


def seed_of(seed: int, rank: Optional[int] = None) -> int:
    """A seed for one rank, or with None for all ranks. Different ranks have unrelated seeds."""
    words = [seed, 0] if rank is None else [seed, rank + 1]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint32)[0])


def shuffled_files(paths: tf.Tensor, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """The strings, shuffled by that seed and epoch."""
    return tf.random.experimental.stateless_shuffle(paths, [np.int64(seed), epoch])


def shuffled(records: tf.data.Dataset, buffer: int, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    """The records, shuffled by that seed and epoch. For use in dataset functions only."""
    # A shuffle mixes its seed with that of its graph, which the program sets, and which may differ
    # by rank.
    v1.get_default_graph().seed = None
    one = tf.random.stateless_uniform(
        [], [np.int64(seed), epoch], minval=0, maxval=np.iinfo(np.int64).max, dtype=tf.int64
    )
    return records.shuffle(buffer, seed=one, reshuffle_each_iteration=False)
