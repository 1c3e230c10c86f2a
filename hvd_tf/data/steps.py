# SPDX-License-Identifier: Apache-2.0
"""`equal_steps`: equally many batches on every rank, by arithmetic or by agreement."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from hvd_tf._internal import new_starts
from hvd_tf._internal.compat import made_from
from hvd_tf._internal.facts import ERROR, Facts, check_same, exchange
from hvd_tf._internal.names import DATA_PREFIX
from hvd_tf._internal.runtime import ProcessSet, global_process_set
from hvd_tf.data.agreement import (
    END,
    FRESH,
    GO,
    NOT_YET,
    NOTHING,
    REPEATED,
    Agreement,
    Iteration,
    Verdict,
)
from hvd_tf.data.early_values import early_value
from hvd_tf.data.marks import check_agreements, mark_agreed, mark_inexact
from hvd_tf.data.members import announce, checked_size
from hvd_tf.data.splitting import check_uneven, equal_length
from hvd_tf.process_sets import registered

INFINITE: int = tf.data.INFINITE_CARDINALITY
UNKNOWN: int = tf.data.UNKNOWN_CARDINALITY


@tf.autograph.experimental.do_not_convert
def equal_steps(
    dataset: tf.data.Dataset,
    uneven: str = "drop",
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """The dataset, with equally many elements on every rank. A collective call.

    It is for a pipeline whose own steps make lengths differ after `shard(..., uneven="keep")`, such
    as a filter or a flat_map. If every rank's cardinality is known, lengths are compared now. Else
    the ranks agree on each batch while the one before it is in use. No data is read twice, or
    counted first.

    Args:
      dataset: of any structure. A step takes one element, so batch the dataset before.
      uneven: what happens where the ranks' lengths differ. "drop": all end with the shortest.
        "repeat": the shorter ones start again until the longest has ended. "raise": an error, on
        every rank. "keep": nothing, for loops without collectives.
      process_set: the ranks that take part, this one among them.

    Returns:
      A dataset of the same structure. Iterate over it on all ranks or on none. Where lengths are
      unknown, slices of a ragged tensor come as plain tensors, as from TensorFlow's own `map`.

    Raises:
      ValueError: on every rank. Lengths are known, and a rank has nothing, or they differ and
        uneven="raise"; the ranks agree on the steps of a shard before a filter; or the arguments
        differ. If lengths are unknown, such errors come while iterating, as tf.errors.OpError.
    """
    check_uneven(uneven)
    size = checked_size(process_set)
    if size == 1:
        return dataset
    steps = Steps(uneven, process_set)
    facts: Facts = {"length": length_of(dataset)}
    try:
        if uneven != "keep":
            check_agreements(dataset, uneven)
    except ValueError as error:
        facts[ERROR] = str(error)
    everyones = steps.exchange(facts)
    if uneven == "keep":
        return dataset
    lengths = [theirs["length"] for theirs in everyones]
    if all(length == INFINITE for length in lengths):
        return dataset
    if any(length < 0 for length in lengths):
        agreed = made_from(steps.agreed(dataset), dataset)
        return agreed if uneven == "raise" else mark_inexact(agreed)
    length = equal_length(lengths, uneven, "batch")
    assert length is not None
    dropped = sum(lengths) - length * size
    if uneven == "drop" and dropped:
        announce(f"data: {dropped} of {sum(lengths)} batches are dropped", process_set)
    if len(set(lengths)) == 1:
        return dataset
    # All are made anew, because the mark is not meant for the caller's dataset.
    repeated = dataset.repeat() if length > lengths[registered(process_set).rank] else dataset
    return mark_inexact(repeated.take(length))


def at_length(dataset: tf.data.Dataset, wanted: int, length: int) -> tf.data.Dataset:
    """The dataset, which has `length` elements, cut or repeated to the wanted length."""
    if wanted > length:
        dataset = dataset.repeat()
    return dataset if wanted == length else dataset.take(wanted)


def length_of(dataset: tf.data.Dataset) -> int:
    """The number of elements, INFINITE or UNKNOWN. Reads no element."""
    length = early_value(tf.data.experimental.cardinality(dataset))
    return UNKNOWN if length is None else length


class Steps:
    """The iterations of one dataset over all ranks."""

    _last_instance = -1  # of this process, over all process sets

    def __init__(self, uneven: str, process_set: ProcessSet) -> None:
        self.uneven = uneven
        self.process_set = process_set
        self._instance: Optional[int] = None
        self._iterations: dict[bytes, Iteration] = {}  # by name, those that have not ended here
        self._passes: dict[int, Agreement] = {}  # in the order of their beginnings here
        self._keys = itertools.count()  # of passes
        self._numbers = itertools.count()  # of iterations
        self._start = new_starts.number()
        self._count_at_start = 0

    def exchange(self, facts: Facts) -> list[Facts]:
        """Every rank's facts, like `facts.exchange`. Call it once, before `agreed`."""
        instance = Steps._last_instance + 1
        mine = {"uneven": self.uneven, "instance": instance, **facts}
        everyones = exchange(mine, f"{DATA_PREFIX}facts", self.process_set)
        check_same(everyones, "uneven", "uneven=", "Pass the same on every rank")
        # A rank may have made datasets that others have not, and no name may be used twice.
        self._instance = max(theirs["instance"] for theirs in everyones)
        Steps._last_instance = self._instance
        return everyones

    def agreed(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """The dataset, with an agreement on each of its elements if ranks may differ.

        Call it after `exchange`. It may be called in functions of datasets.
        """
        return self.iterations(lambda name: self.agreed_pass(dataset, name, np.int64(0)))

    def iterations(self, passes: Callable[[tf.Tensor], tf.data.Dataset]) -> tf.data.Dataset:
        """A dataset of all passes, which are made for each iteration by its name, a string scalar.

        Ranks count iterations, and not the passes that they begin: some begin another pass only
        because they read ahead.
        """
        if not self._may_differ():
            return passes(tf.constant(""))
        # A generator, because that hears when its iterator is destroyed.
        names = tf.data.Dataset.from_generator(
            self._iteration, output_signature=tf.TensorSpec([], tf.string)
        )
        return mark_agreed(names.flat_map(lambda name: passes(tf.ensure_shape(name, []))))

    def agreed_pass(
        self, dataset: tf.data.Dataset, iteration: tf.Tensor, epoch: tf.Tensor
    ) -> tf.data.Dataset:
        """`agreed` for one pass of the iteration of that name. For use in `iterations`."""
        if not self._may_differ():
            return dataset
        key = tf.numpy_function(self._begin_pass, [iteration, epoch], tf.int64)
        key = tf.ensure_shape(key, [])
        offers = _with_shares(dataset, repeat=self.uneven == "repeat")
        offered = offers.map(lambda element, share: (element, self._offer(key, share)))
        verdicts = tf.data.Dataset.from_generator(
            self._verdicts,
            args=(key,),
            output_signature=(tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)),
        ).filter(lambda verdict, _: tf.not_equal(verdict, NOT_YET))
        return (
            tf.data.Dataset.zip((offered, verdicts))
            .take_while(lambda _, verdict: tf.not_equal(verdict[0], END))
            .prefetch(1)  # one step ahead
            .map(lambda offer, verdict: _granted(offer[0], *verdict))
        )

    def _may_differ(self) -> bool:
        return self.uneven != "keep" and self.process_set.size() != 1

    def _iteration(self) -> Iterator[bytes]:
        number = next(self._numbers)
        if self._start != new_starts.number():
            self._start = new_starts.number()
            self._count_at_start = number
        name = f"{DATA_PREFIX}{self._instance}/{self._start}/{number - self._count_at_start}"
        iteration = Iteration(name, self.process_set)
        self._iterations[name.encode()] = iteration
        has_ended = False
        try:
            yield name.encode()
            has_ended = True
        finally:
            if not has_ended:
                self._leave(iteration)
            del self._iterations[name.encode()]

    def _leave(self, iteration: Iteration) -> None:
        iteration.is_left = True
        of_it = [one for one in self._passes.copy().values() if one.iteration is iteration]
        for one in of_it:  # one that is in use leaves by itself
            one.leave_unless_in_use()
        if not of_it:  # others may be ahead, in the next pass
            key = self._begin_pass(iteration.name.encode(), np.int64(-1))
            self._passes[key].leave_unless_in_use()

    def _begin_pass(self, name: bytes, epoch: np.int64) -> np.int64:
        iteration = self._iterations.get(name) or Iteration(name.decode(), self.process_set)
        key = next(self._keys)
        self._passes[key] = Agreement(iteration, int(epoch), self.uneven, self.process_set)
        return np.int64(key)

    def _offer(self, key: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
        def offer(key: np.int64, share: np.int64) -> np.int64:
            mine = self._passes.get(int(key))
            if mine is not None:  # else it has failed
                earlier = self._earlier_than(int(key)).values()
                mine.offer(int(share), any(other.is_open for other in earlier))
            return share

        return tf.numpy_function(offer, [key, share], tf.int64)

    def _verdicts(self, key: np.int64) -> Iterator[Verdict]:
        mine = self._passes[int(key)]
        try:
            for verdict in mine.verdicts():
                yield verdict
                if mine.is_only:
                    self._forget_before(int(key))
        finally:
            if not mine.left:
                self._passes.pop(int(key), None)

    def _forget_before(self, key: int) -> None:
        for earlier, other in self._earlier_than(key).items():
            if other.left and not other.is_open:
                self._passes.pop(earlier, None)  # another thread may do the same
                other.iteration.say_farewell("")  # nobody is there any more

    def _earlier_than(self, key: int) -> dict[int, Agreement]:
        # Of a copy, because other threads of TensorFlow begin and end passes meanwhile.
        return {k: other for k, other in self._passes.copy().items() if k < key}


def _granted(offer: Any, verdict: tf.Tensor, text: tf.Tensor) -> Any:
    """The element, or an error with the text. The operation of that error does not log it too.

    Pipelines after this one read ahead. They drop what they have when the training ends.
    """
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(verdict, GO), [text])]):
        return offer.get_value()


def _with_shares(dataset: tf.data.Dataset, repeat: bool) -> tf.data.Dataset:
    """Endless pairs of an optional element and this rank's share of the batch."""
    # The structure as functions see it. There, for example, a slice of a ragged tensor may be a
    # plain tensor.
    structure = dataset.map(lambda *parts: _element(dataset, parts)).element_spec
    optional = tf.experimental.Optional

    def elements(source: tf.data.Dataset, share: int) -> tf.data.Dataset:
        return source.map(
            lambda *parts: (
                optional.from_value(_element(dataset, parts)),
                np.int64(share),
            )
        )

    nothing = tf.data.Dataset.from_tensors(0).map(
        lambda _: (optional.empty(structure), np.int64(NOTHING))
    )
    offers = elements(dataset, FRESH)
    if repeat:
        # The map comes before the repeat. TensorFlow fuses a shuffle with a repeat right after it,
        # and what else reads the shuffle, as the fresh elements do, would never end then.
        offers = offers.concatenate(elements(dataset, REPEATED).repeat())
    return offers.concatenate(nothing.repeat())


def _element(dataset: tf.data.Dataset, parts: tuple) -> Any:
    """The element of the dataset that a function of `map` gets as these arguments."""
    # tf.data hands over a plain tuple in parts. A namedtuple is one argument.
    return parts if type(dataset.element_spec) is tuple else parts[0]
