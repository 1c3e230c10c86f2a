# SPDX-License-Identifier: Apache-2.0
"""What mpirun starts as every rank. It runs the user's command and tells how that has ended.

Its arguments are the command's, as `words.py` writes them, perhaps with SHARE_CORES before them. On
the launcher's host HVD_JOB_DIR names the launcher's private directory. It may hold variables that
are right for this host's ranks only, and a link to the launcher's standard input. Notices go there,
or by stderr, as `notices.py` says.

mpirun runs this file by its path, isolated and without `site`, so it may import nothing of hvd_tf.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import sys
import time

LOCAL_VARIABLES = "local-variables"
STDIN = "stdin"
# A file that is there, and locked, while ranks of this host have time to end.
HOLD = "hold"
# A first argument. No word of a command is like it, as all of them begin with "=".
SHARE_CORES = "share-cores"
# Set for each rank by the launchers of Open MPI and MPICH: its number on its host, and of how many.
_LOCAL_RANK = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_TOPOLOGY = "/sys/devices/system/cpu/cpu%d/topology/%s"
# Set for each rank by the launchers of Open MPI 5 and 4, PMIx and MPICH.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
# Set by MPICH's: the number of the file that is a rank's connection to its launcher.
_CONNECTION = "PMI_FD"
# What notices are about.
RUNNING, STOPPED, ENDED = "running", "stopped", "ended"
_NOT_FOUND, _NOT_RUN = 127, 126  # what a shell returns
_PR_SET_PDEATHSIG = 1
_ASK_FOR_THE_END = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def decode(word: bytes) -> bytes:
    """The argument that a word stands for."""
    head, *rest = word[1:].split(b"%")
    return head + b"".join(bytes.fromhex(part[:2].decode()) + part[2:] for part in rest)


def local_variables() -> "dict[bytes, bytes]":
    """For ranks on the launcher's host. Empty on another host, and if there are none."""
    directory = os.environ.get("HVD_JOB_DIR")
    if not directory:
        return {}
    try:
        with open(os.path.join(directory, LOCAL_VARIABLES), "rb") as file:
            lines = file.read().split(b"\0")[:-1]
    except OSError:
        return {}
    return dict(line.split(b"=", 1) for line in lines)


def rank() -> int:
    """As the launcher counts. -1: it does not say."""
    text = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "")
    return int(text) if text.isdecimal() else -1


def core_of(processor: int) -> "tuple[int, int]":
    """The package of a processor, and its core there. Hyperthreads of one core have the same."""
    try:
        places = []
        for name in ("physical_package_id", "core_id"):
            with open(_TOPOLOGY % (processor, name)) as file:
                places.append(int(file.read()))
    except (OSError, ValueError):
        return 0, processor
    return places[0], places[1]


def share(processors: "dict[int, tuple[int, int]]", local_rank: int, ranks: int) -> "set[int]":
    """The processors of one rank: whole cores, neighbours, as many as every other rank or one more.

    Empty if there are fewer cores than ranks.

    Args:
      processors: the core of each that all the ranks together may use.
      local_rank: the rank's number on its host.
      ranks: how many the host has.
    """
    cores = sorted(set(processors.values()))
    if len(cores) < ranks:
        return set()
    begin, end = (number * len(cores) // ranks for number in (local_rank, local_rank + 1))
    return {number for number, core in processors.items() if core in cores[begin:end]}


def share_cores() -> None:
    """Binds this process and its children to its rank's share of the cores that it may use."""
    local = next((names for names in _LOCAL_RANK if names[1] in os.environ), None)
    if local is None:
        return
    local_rank, ranks = (int(os.environ[name]) for name in local)
    processors = {number: core_of(number) for number in os.sched_getaffinity(0)}
    mine = share(processors, local_rank, ranks)
    if mine:
        os.sched_setaffinity(0, mine)
    elif local_rank == 0:
        cores = len(set(processors.values()))
        print(
            f"hvdrun: --share-cores binds nothing on {os.uname().nodename}, which has {cores} "
            f"core(s) for {ranks} ranks",
            file=sys.stderr,
            flush=True,
        )


def open_stdin() -> None:
    """Rank 0 on the launcher's host reads what the launcher would read. Others read nothing."""
    # Not what mpirun offers: its pipe may stay open for ever behind the last byte.
    sources = [os.devnull]
    directory = os.environ.get("HVD_JOB_DIR")
    if directory and rank() == 0:
        sources.insert(0, os.path.join(directory, STDIN))
    for source in sources:
        try:
            # A named pipe whose writers have gone is at its end. Its open would wait for another.
            file = os.open(source, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
            os.set_blocking(file, True)
        except OSError:
            continue  # it is a socket, or the launcher has no input
        go_to_place_of(source, file)
        os.dup2(file, 0)
        if file:
            os.close(file)
        return


def go_to_place_of(source: str, file: int) -> None:
    """Goes on where the launcher is in a file, part of which others may have read."""
    try:
        with open(os.readlink(source).replace("/fd/", "/fdinfo/")) as facts:
            place = int(facts.readline().partition("pos:")[2])
        os.lseek(file, place, os.SEEK_SET)
    except (OSError, ValueError):
        pass  # it has no places, as a pipe, or is no link


class Notices:
    """Tells the launcher what the command's process does: each notice replaces the one before."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._word = os.environ.get("HVD_NOTICE", "")
        self._directory = os.environ.get("HVD_JOB_DIR", "")

    def write(self, what: str, **facts: "int | bool") -> None:
        """Does nothing if no launcher asks. `facts` are more than every notice has."""
        number = rank()
        if not self._word or number < 0:
            return
        common = {"host": os.uname().nodename, "pid": self._pid, "time_ns": time.time_ns()}
        text = json.dumps({"what": what, "rank": number, **common, **facts}).encode()
        try:
            if self._directory and os.path.isdir(self._directory):
                draft = os.path.join(self._directory, f".rank-{number}.process")
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                    file.write(text)
                os.rename(draft, os.path.join(self._directory, f"rank-{number}.process"))
            else:
                os.write(2, b"\x1e%s %s\n" % (self._word.encode(), text))
        except OSError:
            self._take_back(number)  # a full disk, a closed stream: mpirun tells of the end then

    def _take_back(self, number: int) -> None:
        """Without a notice the launcher does not take the rank for one that was killed."""
        if not self._directory:
            return  # there is none, and a file of that name here is the user's
        try:
            os.unlink(os.path.join(self._directory, f"rank-{number}.process"))
        except OSError:
            pass


def become(command: "list[bytes]", mask: "set[int]", parent: int, shares_cores: bool) -> None:
    """Does not return. To be called in the child."""
    if shares_cores:
        share_cores()  # the parent stays unbound: there a rank sees what it has a share of
    # Who kills the parent means the rank.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    try:
        # Python ignores them, which a command would inherit, and a shell could not undo.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(command[0], command)
    except OSError as error:
        name = os.fsdecode(command[0])
        where = os.uname().nodename
        print(f"hvdrun: cannot run {name!r} on {where}: {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUN)
    finally:
        os._exit(_NOT_RUN)


def let_go() -> None:
    """Closes what the command alone is to hold: its input and output, and files of mpirun's.

    Not the connection to MPICH's launcher. That kills the ranks as soon as one closes without a
    word, and is not to do so before this process has told how the command has ended.
    """
    connection = os.environ.get(_CONNECTION, "")
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number > 2 and name != connection:
                os.close(number)
        except OSError:
            continue  # that of the listing itself
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # stderr is for notices
    os.close(nothing)


def watch(pid: int, notices: Notices) -> int:
    """Passes signals on until the command's process has ended. Returns the status, as os.wait."""
    told = False
    while True:
        number = signal.sigwaitinfo(signal.valid_signals()).si_signo
        # One who sends the group a signal has sent it to the command too.
        if number != signal.SIGCHLD and not _in_my_group(pid):
            try:
                os.kill(pid, number)
            except PermissionError:
                pass  # it has become another user's, as by sudo
        status = _news(pid, notices)
        if status is None:
            told = told or number in _ASK_FOR_THE_END
            continue
        by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        # What the launcher has ended is not the reason for the job's end.
        told = told or by_signal in {number, *signal.sigpending()}
        code = -by_signal if by_signal else os.WEXITSTATUS(status)
        notices.write(ENDED, status=code, told=told)
        return status


def _in_my_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgid(0)
    except ProcessLookupError:
        return True


def _news(pid: int, notices: Notices) -> "int | None":
    """The status once it has ended."""
    while True:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if not found:
            return None
        if os.WIFSTOPPED(status):
            notices.write(STOPPED)
        elif os.WIFCONTINUED(status):
            notices.write(RUNNING)
        else:
            return status


def wait_for_others() -> None:
    """Where the launcher has asked all ranks of its host to end, waits until they have.

    Else mpirun would kill the others. Signals are blocked here, but for SIGKILL.
    """
    try:
        file = os.open(os.path.join(os.environ["HVD_JOB_DIR"], HOLD), os.O_RDONLY)
        fcntl.flock(file, fcntl.LOCK_SH)
    except (KeyError, OSError):
        pass  # mostly: it has not


def end_alike(status: int) -> None:
    """Ends this process in the same way, so that mpirun sees what it would have seen."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # there is one already
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


def main(*words: str) -> None:
    shares_cores = words[:1] == (SHARE_CORES,)
    command = [decode(os.fsencode(word)) for word in words[shares_cores:]]
    for name, value in local_variables().items():
        os.environb.setdefault(name, value)
    open_stdin()
    # They wait for watch(), so that none of them ends this process before the command.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored no status is kept
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        become(command, mask, me, shares_cores)
    let_go()
    notices = Notices(pid)
    notices.write(RUNNING)
    status = watch(pid, notices)
    wait_for_others()
    end_alike(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
