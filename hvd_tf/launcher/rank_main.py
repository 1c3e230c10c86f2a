# SPDX-License-Identifier: Apache-2.0
"""What mpirun starts as every rank: it becomes the user's command.

Arguments: the command's, as `words.py` writes them. On the launcher's host HVD_JOB_DIR names its
private directory, which may hold variables that are right for this host's ranks only, and a link
to the launcher's standard input.

mpirun runs this file by its path, isolated and without `site`, so it may import nothing of hvd_tf.
"""

import os
import sys

LOCAL_VARIABLES = "local-variables"
STDIN = "stdin"
# Set for each rank by the launchers of Open MPI 5 and 4, PMIx and MPICH.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def decode(word: bytes) -> bytes:
    """The argument that a word stands for."""
    head, *rest = word[1:].split(b"%")
    return head + b"".join(bytes.fromhex(part[:2].decode()) + part[2:] for part in rest)


def local_variables() -> "dict[bytes, bytes]":
    """For ranks on the launcher's host; empty on another one and where there are none."""
    directory = os.environ.get("HVD_JOB_DIR")
    if not directory:
        return {}
    try:
        with open(os.path.join(directory, LOCAL_VARIABLES), "rb") as file:
            lines = file.read().split(b"\0")[:-1]
    except OSError:
        return {}
    return dict(line.split(b"=", 1) for line in lines)


def open_stdin() -> None:
    """Rank 0 reads what the launcher would read; the others, and one on another host, nothing."""
    # Not what mpirun offers: its pipe may stay open for ever behind the last byte.
    sources = [os.devnull]
    directory = os.environ.get("HVD_JOB_DIR")
    rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "")
    if directory and rank == "0":
        sources.insert(0, os.path.join(directory, STDIN))
    for source in sources:
        try:
            file = os.open(source, os.O_RDONLY | os.O_NOCTTY)
        except OSError:
            continue  # a socket cannot be opened; nor can what the launcher has not got
        os.dup2(file, 0)
        if file:
            os.close(file)
        return


def main(*words: str) -> int:
    command = [decode(os.fsencode(word)) for word in words]
    for name, value in local_variables().items():
        os.environb.setdefault(name, value)
    open_stdin()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        name = os.fsdecode(command[0])
        where = os.uname().nodename
        print(f"hvdrun: cannot run {name!r} on {where}: {error.strerror}", file=sys.stderr)
        # What a shell returns.
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
