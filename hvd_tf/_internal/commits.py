# SPDX-License-Identifier: Apache-2.0
"""Commits that outlive the job's processes: rank 0 keeps the last one of each state in a file.

The files are in the directory that HVD_ELASTIC_DIR names. `hvdrun --restarts` makes one for the
time that it runs. Without a directory there are no files: commits are then in memory only.

Each program, with its arguments, has files of its own. A restarted one finds them again.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional

DIRECTORY_VARIABLE = "HVD_ELASTIC_DIR"
# The directory that `hvdrun` has chosen itself. It has no more room than there happens to be.
CHOSEN_VARIABLE = "HVD_ELASTIC_CHOSEN_DIR"
# The same at all starts of one job. `hvdrun` makes one up where there is none.
JOB_VARIABLE = "HVD_ELASTIC_JOB"
# Names the function that hvd_tf.run calls. The program around it is always the same.
PROGRAM_VARIABLE = "HVD_ELASTIC_PROGRAM"
_FINISHED = ".finished"


def program() -> tuple[str, ...]:
    """What tells this program from others: its file and its arguments."""
    if PROGRAM_VARIABLE in os.environ:
        return (os.environ[PROGRAM_VARIABLE],)
    path = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return (os.path.realpath(path) if path else "", *sys.argv[1:])


class _Start(NamedTuple):
    """Which start of which job this is."""

    job: str
    """Empty: nobody says which job it is."""
    number: int
    """0 for its first start."""
    slurm_job: str = ""
    """Slurm's number of it. It may run several jobs of `hvdrun`, one after another."""
    slurm_number: int = 0
    """How often Slurm has started it again."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> _Start:
        """As `hvdrun` says it, and Slurm where it has started `hvdrun`."""

        def number(name: str) -> int:
            text = environ.get(name, "")
            return int(text) if text.isdecimal() else 0

        return cls(
            environ.get(JOB_VARIABLE, ""),
            number("HVD_RESTART"),
            environ.get("SLURM_JOB_ID", ""),
            number("SLURM_RESTART_COUNT"),
        )

    def follows(self, other: _Start) -> bool:
        """Whether the same job was started again since, by `hvdrun` or by Slurm."""
        is_of_slurm_job = self.slurm_job != "" and self.slurm_job == other.slurm_job
        if is_of_slurm_job and self.slurm_number != other.slurm_number:
            return self.slurm_number > other.slurm_number
        return self.job != "" and self.job == other.job and self.number > other.number


class CommitFile:
    """The file of one state.

    It is known by the program, the state's number (states are made in the same order) and what the
    state consists of.
    """

    def __init__(
        self,
        number: int,
        environ: Mapping[str, str] = os.environ,
        identity: Iterable[str] = (),
    ) -> None:
        """For one state.

        Args:
          number: 0 for the first state of a program.
          environ: where HVD_ELASTIC_DIR is, and what says which start of which job this is.
          identity: what tells the program and the state from others.

        Raises:
          ValueError: HVD_ELASTIC_DIR is set, by the user or hvdrun, to what is no directory here.
        """
        self._directory = environ.get(DIRECTORY_VARIABLE, "")
        self._is_chosen = self._directory == environ.get(CHOSEN_VARIABLE)
        self._has_warned = False
        self._start = _Start.of(environ)
        self._path: Optional[Path] = None
        if self._directory:
            if not Path(self._directory).is_dir():
                raise ValueError(
                    f"{DIRECTORY_VARIABLE}={self._directory} is no directory on rank 0's host: set "
                    "it to one that is there, and is kept while the job is started again"
                )
            digest = hashlib.sha256(repr(tuple(identity)).encode("utf-8", "surrogateescape"))
            self._path = Path(self._directory, f"commit-{number}-{digest.hexdigest()[:16]}")

    def write(self, content: Any) -> None:
        """Replace what is there. A reader sees the old or the new content, never a part.

        Where there is no room in a directory that `hvdrun` has chosen, the old content stays.

        Raises:
          OSError: there is no room in a directory of the user's.
          ValueError: somebody else could write to the file, so it could not be read later.
        """
        if self._path is None:
            return
        try:
            self._replace(self._path, content)
            self._mark.unlink(missing_ok=True)
        except OSError as error:
            self._bear(error, "a commit")

    def _replace(self, path: Path, content: Any) -> None:
        drafts = f"{path.name}.draft-"
        for left in path.parent.glob(f"{drafts}*"):
            left.unlink(missing_ok=True)  # of a rank that was killed here
        descriptor, draft = tempfile.mkstemp(prefix=drafts, dir=path.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                pickle.dump(content, file, protocol=5)
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
            os.unlink(draft)
            raise

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
            self._mark.write_text(json.dumps(self._start))
        except OSError as error:
            with suppress(OSError):
                self._mark.unlink()  # half of one would have a new start train again
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
            return pickle.load(file)

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
            return not self._start.follows(_Start(*json.loads(self._mark.read_text())))
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

    def _say(self, text: str) -> None:
        print(f"hvd_tf.elastic: {text}", file=sys.stderr, flush=True)
