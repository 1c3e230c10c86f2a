# SPDX-License-Identifier: Apache-2.0
"""What mpirun starts as every rank: it becomes the user's command.

Argument: the file with the command's arguments, each ended by a zero byte. They do not go through
mpirun, whose own parser takes a lone ":" for the next program, renames "--map-by" and refuses
some options that come twice, also behind the program's name.

mpirun runs this file by its path, isolated and without `site`, so it may import nothing of hvd_tf.
"""

import os
import sys


def read_command(path: str) -> "list[bytes]":
    """The arguments in the file, of which there is at least one."""
    with open(path, "rb") as file:
        return file.read().split(b"\0")[:-1]


def main(path: str) -> int:
    command = read_command(path)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        name = os.fsdecode(command[0])
        print(f"hvdrun: cannot run {name!r}: {error.strerror}", file=sys.stderr)
        # What a shell returns.
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
