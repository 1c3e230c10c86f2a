# SPDX-License-Identifier: Apache-2.0
"""An uncaught exception: its words, its reason, and what the launcher is to print of it."""

from __future__ import annotations

import os
import re
import time
import traceback
from dataclasses import dataclass
from types import TracebackType

from hvd_tf._internal import blame
from hvd_tf._internal.causes import Cause, Kind
from hvd_tf._internal.failure_report import Report

_LONGEST_LINE = 500


@dataclass(frozen=True)
class Uncaught:
    """An exception that ends this rank."""

    kind: type[BaseException]
    value: BaseException
    trace: TracebackType | None
    time_ns: int
    """When it was caught, in nanoseconds since 1970."""
    lines: str
    """The traceback as Python prints it."""
    cause: Cause | None
    """What hvd_tf knows of its reason."""

    @property
    def blames_peer(self) -> bool:
        """Whether it names a peer's failure as the reason."""
        return blame.blames_peer(self.cause)

    @property
    def was_told_of_silence(self) -> bool:
        """Whether it says itself that a peer was silent and was given up."""
        return self.cause is not None and self.cause.kind is Kind.RANK_GIVEN_UP

    @property
    def first_line(self) -> str:
        """Its class and message, in one line."""
        return _first_line(self.kind, self.value)

    def report(self, rank: int, also: str = "", ends_job: bool = True) -> Report:
        """What the launcher is to print of it. `also` stands behind the traceback."""
        host, lines = os.uname().nodename, self.lines + also
        return Report(self.time_ns, rank, host, os.getpid(), lines, self.blames_peer, ends_job)


def catch(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> Uncaught:
    """For the arguments of sys.excepthook."""
    time_ns, lines = time.time_ns(), _format(kind, value, trace)
    return Uncaught(kind, value, trace, time_ns, lines, blame.find_cause(value))


def _first_line(kind: type[BaseException], value: BaseException) -> str:
    try:
        text = _own_words(str(value).strip())
    except Exception:
        text = "its message cannot be shown"
    line = f"{kind.__name__}: {text}" if text else kind.__name__
    return line.splitlines()[0][:_LONGEST_LINE]


def _own_words(message: str) -> str:
    """The message without what TensorFlow puts before the words of an operation."""
    message = re.sub(r"^\{\{function_node .*?\}\} ", "", message)
    if not message.startswith("Graph execution error:"):
        return message
    before_nodes = message.partition("\n\t [[")[0]
    paragraph = [part for part in before_nodes.split("\n\n") if part.strip()][-1].strip()
    _, node, words = paragraph.rpartition("\nNode: ")
    return words.partition("\n")[2] if node else paragraph


def _format(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_exception(kind, value, trace))
    except Exception:
        return _first_line(kind, value) + "\n"
