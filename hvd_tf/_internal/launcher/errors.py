# SPDX-License-Identifier: Apache-2.0
"""The one exception of the launcher: what the user can mend."""


class LaunchError(Exception):
    """One sentence about what the user can mend."""
