# SPDX-License-Identifier: Apache-2.0
"""`horovod`, as its users know it, made of hvd_tf. See hvd_tf/as_horovod.py.

The modules below this one have Horovod's names and hold nothing of their own where hvd_tf has the
same. Private names are those that programs were seen to use.
"""

from hvd_tf._internal.run import run as run

__version__ = "0.28.1"  # whose interface this is
