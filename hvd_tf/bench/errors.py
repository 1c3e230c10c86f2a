# SPDX-License-Identifier: Apache-2.0
"""What hvd-bench says when it cannot go on."""


class BenchError(Exception):
    """One sentence about what the user can mend."""
