# SPDX-License-Identifier: Apache-2.0
"""What mpirun starts as every rank: it becomes the user's command.

Arguments: the command's, as `words.py` writes them. On the launcher's host HVD_JOB_DIR names its
private directory, which may hold variables that are right for this host's ranks only.

mpirun runs this file by its path, isolated and without `site`, so it may import nothing of hvd_tf.
"""

import os
import sys

LOCAL_VARIABLES = "local-variables"


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


def main(*words: str) -> int:
    command = [decode(os.fsencode(word)) for word in words]
    for name, value in local_variables().items():
        os.environb.setdefault(name, value)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        name = os.fsdecode(command[0])
        print(f"hvdrun: cannot run {name!r}: {error.strerror}", file=sys.stderr)
        # What a shell returns.
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
