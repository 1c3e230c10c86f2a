# SPDX-License-Identifier: Apache-2.0
"""A process that outlives a launcher that is killed, ends what is left of its job, tidies up, ends.

It is a fork of the launcher, in a session of its own, and deaf to signals. It waits for the end of
a pipe. Only the launcher holds the other side. Through the pipe the launcher names what there will
be to end and to remove. If both are killed, the next start removes the files.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hvd_tf._internal import failure_report
from hvd_tf._internal.launcher import marked, mpich_segments
from hvd_tf._internal.launcher.directories import Directories

# mpirun gets SIGTERM when the launcher dies and has this long to end the job in its own way.
_GRACE_S = 4.0


class Watcher:
    """Owner: the launcher's main thread, before it has started any other."""

    def __init__(self) -> None:
        """Starts it. Signals that end the launcher in an orderly way are to be blocked by now."""
        source, self._pipe = os.pipe()  # neither is inherited by a program
        self._pid = os.fork()
        if self._pid == 0:
            _child(source)
        os.close(source)

    def watch(self, directories: Directories, kept: Sequence[Path]) -> None:
        """Names the job's directories, of which that of the job marks its processes as well.

        kept: those that all starts of the job share. They go only if the launcher is killed.
        """
        names = (directories.job, directories.segments, *kept)
        with suppress(BrokenPipeError):  # somebody has ended it
            os.write(self._pipe, b"".join(os.fsencode(name) + b"\0" for name in names))

    def close(self) -> None:
        """Ends it. To be called when the job has ended and its directories are gone."""
        os.close(self._pipe)
        os.waitpid(self._pid, 0)


def _child(source: int) -> None:
    """What the watcher does, from its beginning to its end."""
    try:
        os.setsid()
        with suppress(OSError):
            Path("/proc/self/comm").write_text(marked.WATCHER)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        # Neither its own pipe nor a reader of the launcher's output may wait for this process.
        os.dup2(source, 0)
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                os.close(int(name) or -1)
        _wait_and_tidy(0)
    finally:
        os._exit(0)


def _wait_and_tidy(source: int) -> None:
    began_s, told = time.time(), b""
    while chunk := os.read(source, 1 << 12):
        told += chunk
    names = [os.fsdecode(name) for name in told.split(b"\0")[:-1]]
    if not any(map(os.path.isdir, names[:2])):
        return  # the launcher has done all itself
    marked.end_marked(failure_report.DIRECTORY_VARIABLE, names[0], _GRACE_S)
    for name in names:
        shutil.rmtree(name, ignore_errors=True)
    mpich_segments.remove_left(began_s)
