# SPDX-License-Identifier: Apache-2.0
"""A rank's share of the batches that an Estimator's input_fn gives for evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal import compat
from hvd_tf._internal.compat import v1
from hvd_tf._internal.runtime import size
from hvd_tf.data.contents import Content, contents_of
from hvd_tf.data.marks import is_exact, is_share, parts_of, shuffle_seeds
from hvd_tf.data.steps import length_of
from hvd_tf.estimator.input_sharding import parameters_of, whole_input_fn

EVAL = "eval"
"""tf.estimator.ModeKeys.EVAL."""


@dataclass
class EvaluationInput:
    """The input of an evaluation, in the default graph."""

    result: Any
    """What input_fn returned: a dataset, or tensors."""
    obstacle: str
    """Why the ranks cannot share the batches. Empty: they can."""
    is_share: bool = False
    """Whether the input is a rank's share already."""
    parts: list[Optional[tuple[int, int]]] = field(default_factory=list)
    """What Dataset.shard has made of it. All ranks' tell whether they are shares."""
    # A dataset that is no share has the next three, once it is known that it is none.
    length: Optional[int] = None
    seeds: Optional[list[Optional[list[int]]]] = None
    """Those of its shuffles. None: it has no fixed order."""
    contents: list[Content] = field(default_factory=list)

    def settle(self) -> None:
        """Finds out whether ranks can share the batches, where they are no shares already."""
        if self.obstacle or self.is_share:
            return
        unordered = compat.nondeterministic_dataset(self.result)
        if unordered:
            words = f"its dataset has {unordered}, so ranks would not see the same batches in the "
            self.obstacle = words + "same order"
        else:
            self.seeds = shuffle_seeds(self.result)
        if size() > 1:  # else nobody compares
            self.length, self.contents = length_of(self.result), contents_of(self.result)

    def tensors(self, share: Optional[tuple[int, int]], steps: Optional[int]) -> Tensors:
        """The next batch, as features and labels.

        Args:
          share: (n, i) for every n-th batch from the i-th on. None for all batches.
          steps: the most batches over all shares. None for all.
        """
        if not isinstance(self.result, tf.data.Dataset):
            return Tensors(*_features_and_labels(self.result), None)
        if share and self.is_share and steps is not None:
            steps = len(range(share[1], steps, share[0]))
        dataset = self.result if steps is None else self.result.take(steps)
        if share and not self.is_share:
            # The order of batches must not depend on which thread was faster.
            options = tf.data.Options()
            options.deterministic = True
            dataset = dataset.with_options(options).shard(*share)
        iterator = v1.data.make_initializable_iterator(dataset)
        batch = _features_and_labels(iterator.get_next())
        return Tensors(*batch, iterator.initializer)


@dataclass
class Tensors:
    """A batch in the graph."""

    features: Any
    labels: Any
    initializer: Optional[tf.Operation]
    """The iterator's initializer, to run once in each session. None: there is none."""

    def examples(self) -> tf.Tensor:
        """int64 []: the batch's number of examples, the first dimension of its first tensor."""
        for item in tf.nest.flatten([self.features, self.labels]):
            if isinstance(item, tf.SparseTensor):
                return tf.cast(item.dense_shape[0], tf.int64)
            if isinstance(item, tf.RaggedTensor):
                return tf.cast(item.nrows(), tf.int64)
            if item is not None and tf.convert_to_tensor(item).shape.rank != 0:
                return tf.shape(item, out_type=tf.int64)[0]
        return tf.constant(1, tf.int64)


def read(input_fn: Callable[..., Any], params: Any, config: Any) -> EvaluationInput:
    """Calls input_fn as Estimator does: with those of mode, params and config that it takes.

    Raises:
      ValueError: it returns a share of the data that drops or repeats records.
    """
    input_fn = whole_input_fn(input_fn)
    known = {"mode": EVAL, "params": params, "config": config}
    takes = parameters_of(input_fn)
    with tf.device("/cpu:0"):
        result = input_fn(**{name: value for name, value in known.items() if name in takes})
    if not isinstance(result, tf.data.Dataset):
        return EvaluationInput(result, "its input_fn returns tensors instead of a tf.data.Dataset")
    if not is_exact(result):
        raise ValueError(
            "input_fn gives a share that drops or repeats records to make the ranks' steps equal, "
            'so not every record would count once: pass uneven="keep" to hvd.data.shard and '
            "equal_steps for evaluation, and no drop_remainder; or return all data"
        )
    return EvaluationInput(result, "", is_share(result), parts_of(result))


def _features_and_labels(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, (list, tuple)):
        return batch, None
    if len(batch) != 2:
        raise ValueError(
            f"input_fn gave {len(batch)} components; return (features, labels), or the features"
        )
    return batch[0], batch[1]
