# SPDX-License-Identifier: Apache-2.0
"""A directory for sys.path: it holds nothing but a `horovod`. See hvd_tf/as_horovod.py."""
