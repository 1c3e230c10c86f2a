# SPDX-License-Identifier: Apache-2.0
"""The one exception of the launcher: what the user can mend."""


class LaunchError(Exception):
    """One sentence about what the user can mend."""


def no_temporary_files(error: OSError) -> LaunchError:
    """What it means for the user that the launcher's own files could not be made."""
    return LaunchError(
        f"cannot write temporary files ({error.strerror}): set TMPDIR to a directory that can be "
        "written and has room"
    )
