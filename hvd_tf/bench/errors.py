# SPDX-License-Identifier: Apache-2.0
"""The error that ends hvd-bench."""


class BenchError(Exception):
    """One sentence about what the user can put right."""
