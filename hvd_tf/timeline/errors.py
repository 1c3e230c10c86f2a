# SPDX-License-Identifier: Apache-2.0
"""The error that ends `python -m hvd_tf.timeline`."""


class TimelineError(Exception):
    """One sentence about what the user can put right."""
