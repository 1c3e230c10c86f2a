# SPDX-License-Identifier: Apache-2.0
"""One pass over a dataset on all ranks. They agree one batch ahead whether there is a next one.

A thread of its own gathers the ranks' shares, batch after batch. So TensorFlow's threads never wait
in a collective, and an iterator can always be destroyed at once. A rank that leaves the iteration
early says so, after the last of its shares. A rank that needs its next share then fails with that
reason, and does not wait. A rank that has only read ahead does not fail: at the end of a training
all ranks leave, one of them first.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Optional, Union

import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal import blame, native
from hvd_tf._internal.causes import Kind, cause_of
from hvd_tf._internal.compat import eager_mode
from hvd_tf._internal.runtime import ProcessSet
from hvd_tf._internal.scopes import fail_data_again
from hvd_tf.data.members import announce

# A rank's share of a batch.
NOTHING, REPEATED, FRESH = 0, 1, 2
# The verdict on a batch. GONE: another rank has left the iteration.
NOT_YET, END, GO, GONE = -1, 0, 1, 2
_Share = tuple[int, bool]  # and whether an earlier iteration of the dataset is open here
Verdict = tuple[int, str]
"""The number and a text. For GONE it is the error where the batch is needed. Else it is empty."""

# How long a thread of TensorFlow waits for a verdict before it checks whether it is still needed.
_PATIENCE_S = 0.01


def verdict(shares: list[int], step: int, uneven: str) -> int:
    """GO or END for batch number `step`, the same on every rank. `shares` are in rank order.

    Raises:
      RuntimeError: a rank has no batch at all, or with uneven="raise" fewer than others.
    """
    without = [rank for rank, share in enumerate(shares) if share == NOTHING]
    if FRESH not in shares:
        if step == 0:
            raise RuntimeError("no rank has a batch: the dataset is empty")
        return END
    if not without:
        return GO
    ranks = ", ".join(map(str, without))
    if step == 0:
        raise RuntimeError(
            f"rank {ranks} has no batch at all while others have: there are fewer records than "
            "ranks, or an empty shard. Use fewer ranks, or more data or files"
        )
    if uneven == "raise":
        raise RuntimeError(
            f'uneven="raise": rank {ranks} has only {step} batches while others have more. Pass '
            'uneven="drop" or uneven="repeat", or other files'
        )
    return END


class Iteration:
    """An iterator's passes, one after another. A rank that leaves one leaves the iteration.

    `name` is the same on every rank, and is never used again.
    """

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self.name = name
        # On this rank, before the end. TensorFlow may go on to the next pass behind an error.
        self.is_left = False
        self._process_set = process_set

    def say_farewell(self, text: str) -> None:
        """Peers that need this rank in a pass of it fail with the text; "" takes it back."""
        set_id = self._process_set.process_set_id
        if set_id is not None:  # else the set is gone, and nobody waits in it
            native.lib.hvd_end_scope(set_id, f"{self.name}/".encode(), text.encode())


class Agreement:
    """One pass. `offer` and `verdicts` are called by TensorFlow's threads, one after another.

    `epoch` is its number in the iteration, the same on every rank.
    """

    def __init__(
        self, iteration: Iteration, epoch: int, uneven: str, process_set: ProcessSet
    ) -> None:
        self.iteration = iteration
        self._name = f"{iteration.name}/{epoch}"
        self._uneven = uneven
        self._process_set = process_set
        # Shares, and at last this rank's farewell, or "" where all know that it is over.
        self._for_thread: queue.SimpleQueue[Union[_Share, str]] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Union[Verdict, Exception]] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._offered = 0
        self._steps = 0  # how many may be taken here
        self._input_failed = False
        self._is_in_use = False  # verdicts are asked for
        # Not until all know that it is over, or this rank has told that it has left.
        self.is_open = True
        self.is_only = False  # no rank is in an earlier iteration of the dataset any more
        self.over = False  # all ranks know that it is over
        self.left = False  # this rank has left before the end

    def offer(self, share: int, is_in_earlier: bool) -> None:
        """Gives this rank's share of its next batch. Does not wait.

        is_in_earlier: whether an earlier iteration of the dataset is open here.
        """
        self._offered += 1
        if self.iteration.is_left:
            return
        self._for_thread.put((share, is_in_earlier))
        if self._thread is None:
            # A daemon, because a peer that never answers must not hold up the end of the program.
            self._thread = threading.Thread(target=self._agree, name="hvd-data", daemon=True)
            self._thread.start()

    def verdicts(self) -> Iterator[Verdict]:
        """For each batch any number of NOT_YET, then another verdict. Closing leaves the iteration.


        Offer a batch before you ask for its verdict. Without an offer the input has failed, and
        TensorFlow has the error itself.

        Raises:
          RuntimeError: as `verdict`.
          tf.errors.UnknownError: the job is over on a peer.
        """
        if self.iteration.is_left:
            return
        self._is_in_use = True
        try:
            while True:
                if self._offered == self._steps:
                    self._input_failed = True
                    return
                try:
                    found = self._verdicts.get(timeout=_PATIENCE_S)
                except queue.Empty:
                    found = NOT_YET, ""
                if isinstance(found, Exception):
                    raise found
                self._steps += found[0] == GO
                yield found
                if found[0] == GONE:
                    return
        finally:
            self._leave()

    def _agree(self) -> None:
        step, goes_on = 0, True
        while not isinstance(told := self._for_thread.get(), str):
            if not goes_on or self.left:
                continue  # nobody asks for a verdict on it
            found = self._found(told, step)
            self._verdicts.put(found)
            goes_on = found == (GO, "")
            step += 1
        self._say_farewell(told)

    def _found(self, share: _Share, step: int) -> Union[Verdict, Exception]:
        over = True
        found: Union[Verdict, Exception]
        try:
            number = self._gather(*share, step)
            over = number == END
            found = number, ""
        except tf.errors.UnknownError as error:
            over = False
            cause = cause_of(error)
            blame.hide(cause)
            found = error
            if cause and cause.kind is Kind.SCOPE_ENDED:
                found = GONE, f"no next batch: {cause.message}"
        except Exception as error:  # for the thread that waits for the verdict
            over = isinstance(error, RuntimeError)
            found = error
        self.over, self.is_open = over, not over
        fail_data_again()
        return found

    def _gather(self, share: int, is_in_earlier: bool, step: int) -> int:
        with eager_mode(), tf.device("CPU"):
            everyones = ops.allgather(
                tf.constant([[share, int(is_in_earlier)]], tf.int64),
                name=f"{self._name}/batch",
                ignore_name_scope=True,
                process_set=self._process_set,
            ).numpy()
        shares, are_in_earlier = everyones.T.tolist()
        self.is_only = not any(are_in_earlier)
        blame.hide(None)
        found = verdict(shares, step, self._uneven)
        if found == END:
            self._announce_end(shares, step)
        return found

    def _announce_end(self, shares: list[int], steps: int) -> None:
        more = ", ".join(str(rank) for rank, share in enumerate(shares) if share == FRESH)
        if more:
            announce(
                f"data: all ranks stop after {steps} batches, where the first ran out of data; "
                f"what rank {more} had left is dropped",
                self._process_set,
            )

    def _leave(self) -> None:
        # Python may call it at any time in any thread, so it must not wait for a lock.
        self.left = not self.over or self.iteration.is_left
        self.iteration.is_left |= self.left
        if not self.left:
            text = ""  # the next pass may begin
        elif self._input_failed:
            text = f"its input failed after {self._steps} batches"
        else:
            text = (
                f"it left its dataset when {self._steps} batches had been agreed on. Every rank "
                "must take the same number: give all the same last step, and leave a loop on all "
                "ranks or on none"
            )
        if self._thread is None:
            self._say_farewell(text)
        else:
            # A share that came after the farewell would take it back.
            self._for_thread.put(text)

    def _say_farewell(self, text: str) -> None:
        if text:
            self.iteration.say_farewell(text)
        self.is_open = False

    def leave_unless_in_use(self) -> None:
        """Leaves the iteration, where no generator of verdicts does so when it is closed."""
        if not self._is_in_use:
            self._leave()
