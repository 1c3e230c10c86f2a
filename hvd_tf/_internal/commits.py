# SPDX-License-Identifier: Apache-2.0
"""Commits that outlive the job's processes: rank 0 keeps the last one of each state in a file.

The files are in the directory that HVD_ELASTIC_DIR names. `hvdrun --restarts` makes one for the
time that it runs. Without a directory there are no files: commits are then in memory only.

Each program, with its arguments, has files of its own. A restarted one finds them again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Optional

from hvd_tf._internal.job_starts import JobStart

DIRECTORY_VARIABLE = "HVD_ELASTIC_DIR"
# The directory that `hvdrun` has chosen itself. It has no more room than there happens to be.
CHOSEN_VARIABLE = "HVD_ELASTIC_CHOSEN_DIR"
# Names the function that hvd_tf.run calls. The program around it is always the same.
PROGRAM_VARIABLE = "HVD_ELASTIC_PROGRAM"
# A program may go elsewhere, to a directory that is new at each start, before it makes a state.
try:
    _BEGUN_IN = os.getcwd()
except OSError:  # it was removed
    _BEGUN_IN = ""
_FINISHED = ".finished"
_DRAFT = ".draft-"


def program() -> tuple[str, ...]:
    """What tells this program from others: its file and its arguments."""
    if PROGRAM_VARIABLE in os.environ:
        return (os.environ[PROGRAM_VARIABLE],)
    path = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return (os.path.realpath(os.path.join(_BEGUN_IN, path)) if path else "", *sys.argv[1:])


def _dump(content: Any, file: IO[bytes]) -> None:
    pickle.dump(content, file, protocol=5)


class CommitFile:
    """The file of one state.

    It is known by the program, the state's number (states are first synced in the same order) and
    what the state consists of.
    """

    def __init__(
        self,
        number: int,
        environ: Mapping[str, str] = os.environ,
        identity: Iterable[str] = (),
        dump: Callable[[Any, IO[bytes]], None] = _dump,
    ) -> None:
        """For one state.

        Args:
          number: 0 for the first state of a program that is synced.
          environ: where HVD_ELASTIC_DIR is, and what says which start of which job this is.
          identity: what tells the program and the state from others.
          dump: pickles an object to a file.

        Raises:
          ValueError: HVD_ELASTIC_DIR is set, by the user or hvdrun, to what is no directory here.
        """
        self._directory = environ.get(DIRECTORY_VARIABLE, "")
        self._is_chosen = self._directory == environ.get(CHOSEN_VARIABLE)
        self._dump = dump
        self._has_warned = False
        self._has_cleaned = False
        self._has_met = False
        self._left: Optional[tuple[int, int]] = None
        self._start = JobStart.of(environ)
        self._path: Optional[Path] = None
        if self._directory:
            self._directory = os.path.join(_BEGUN_IN, self._directory)
            if not Path(self._directory).is_dir():
                raise ValueError(
                    f"{DIRECTORY_VARIABLE}={self._directory} is no directory on rank 0's host: set "
                    "it to one that is there, and is kept while the job is started again"
                )
            digest = hashlib.sha256(repr(tuple(identity)).encode("utf-8", "surrogateescape"))
            self._path = Path(self._directory, f"commit-{number}-{digest.hexdigest()[:16]}")

    @property
    def path(self) -> Path:
        """Of the file, where there is a directory."""
        assert self._path is not None
        return self._path

    def write(self, content: Any) -> None:
        """Replace what is there. A reader sees the old or the new content, never a part.

        Where there is no room in a directory that `hvdrun` has chosen, the old content stays.

        Raises:
          OSError: there is no room in a directory of the user's.
          ValueError: the content cannot be pickled, or somebody else could write to the file, so
            that it could not be read later.
        """
        if self._path is None:
            return
        try:
            self._tell_of_another_job(self._path)
            self._replace(self._path, functools.partial(self._dump_to, content))
            self._left = _signature(self._path)
            self._mark.unlink(missing_ok=True)
        except OSError as error:
            self._bear(error, "a commit")

    def _replace(self, path: Path, write: Callable[[IO[bytes]], Any]) -> None:
        if not self._has_cleaned:
            for left in path.parent.glob(f"{self.path.name}*{_DRAFT}*"):
                left.unlink(missing_ok=True)  # of a rank that was killed here
            self._has_cleaned = True
        descriptor, draft = tempfile.mkstemp(prefix=path.name + _DRAFT, dir=path.parent)  # 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                if others := self._others_who_write(file):
                    raise ValueError(
                        f"{DIRECTORY_VARIABLE}={self._directory}: a file that this rank makes "
                        f"there has {others}, so that others could change what a later start "
                        "reads: name a directory of another volume"
                    )
            os.replace(draft, path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise

    def _dump_to(self, content: Any, file: IO[bytes]) -> None:
        try:
            self._dump(content, file)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # pickle lets through whatever __reduce__ raises
            raise ValueError(
                f"a commit cannot be written to {self._directory}, because something in the state "
                f"cannot be pickled ({type(error).__name__}: {error}): keep it out of the state"
            ) from error

    def _bear(self, error: OSError, what: str) -> None:
        """Go on without the file where nobody but `hvdrun` has asked for one."""
        words = f"{what} cannot be written to {self._directory} ({error.strerror or error})"
        remedy = "to a directory that can be written and has room for two commits"
        if not self._is_chosen:
            raise OSError(error.errno, f"{words}: set {DIRECTORY_VARIABLE} {remedy}") from None
        if not self._has_warned:
            self._has_warned = True
            self._say(
                f"{words}, which hvdrun has chosen: it is kept in memory alone, so that a new "
                f"start of the job does not find it; set {DIRECTORY_VARIABLE} {remedy}"
            )

    def finish(self) -> None:
        """The training has come to its end. A later one of the same program begins anew.

        But a program that is started again because something behind its training failed does not
        train again.

        Raises:
          OSError: there is no room in a directory of the user's.
        """
        if self._path is None or not self._path.exists():
            return
        try:
            mark = json.dumps(self._start).encode()
            self._replace(self._mark, lambda file: file.write(mark))
        except OSError as error:
            self._bear(error, "the end of the training")

    def read(self) -> Any:
        """What was written last, by this process or an earlier one. None: nothing was.

        Raises:
          ValueError: somebody else can write to the file, or wrote it.
        """
        if self._path is None:
            return None
        if not self._path.exists():
            self._tell_of_others(self._path)
            return None
        if self._is_of_a_finished_run():
            self._say(
                f"{self._path} is of a training that has come to its end; this one begins anew"
            )
            return None
        with self._path.open("rb") as file:
            if others := self._others_who_write(file):
                raise ValueError(
                    f"{self._path} is not private to this user: it has {others}, so that others "
                    "could have changed it, and nothing is read from it. If nobody has, give it "
                    f"to this user alone (chown, chmod go-w); else remove it, or name another "
                    f"directory in {DIRECTORY_VARIABLE}"
                )
            try:
                return pickle.load(file)
            except (OSError, MemoryError):
                raise
            except Exception as error:
                raise ValueError(
                    f"{self._path} cannot be read ({type(error).__name__}: {error}): it was left "
                    "by a program with other classes or packages, or is damaged. Bring those back, "
                    "or remove the file to begin anew"
                ) from error

    def _others_who_write(self, file: IO[bytes]) -> str:
        """The owner and the mode of a file that others can write to. Else ""."""
        facts, directory = os.fstat(file.fileno()), os.stat(self._directory)
        is_own = facts.st_uid == os.geteuid()
        # Volumes may show and force other modes than a file was made with.
        is_hidden = directory.st_uid == os.geteuid() and not directory.st_mode & 0o077
        if is_own and (is_hidden or not facts.st_mode & 0o022):
            return ""
        return f"the owner {facts.st_uid} and the mode {stat.S_IMODE(facts.st_mode):04o}"

    @property
    def _mark(self) -> Path:
        """Is there once the training has come to its end, and says in which start of the job."""
        return Path(f"{self._path}{_FINISHED}")

    def _is_of_a_finished_run(self) -> bool:
        """Whether its training has come to its end, and this one is no new start of its program."""
        try:
            return not self._start.follows(JobStart(*json.loads(self._mark.read_text())))
        except FileNotFoundError:
            return False
        except (OSError, ValueError, TypeError):  # of another kind, or half of one
            return True

    def _tell_of_others(self, path: Path) -> None:
        number, _, _ = path.name.rpartition("-")
        if any(path.parent.glob(f"{number}-*")):
            self._say(
                f"the commits in {self._directory} are of other programs, arguments or states; "
                "this training begins anew"
            )

    def _tell_of_another_job(self, path: Path) -> None:
        """Two running jobs of a program would each go on from the other's commits."""
        if self._left is not None and _signature(path) not in (self._left, None):
            if not self._has_met:
                self._say(
                    f"another job has written {path} since this one's last commit, so that a new "
                    "start of either may go on from the other's: give each job that runs at the "
                    f"same time a directory of its own in {DIRECTORY_VARIABLE}"
                )
            self._has_met = True

    def _say(self, text: str) -> None:
        print(f"hvd_tf.elastic: {text}", file=sys.stderr, flush=True)


def _signature(path: Path) -> Optional[tuple[int, int]]:
    """What changes when a file is replaced. None: it is not there.

    Not its inode: file systems of cloud storage may give it another one each time.
    """
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_mtime_ns, facts.st_size
