# SPDX-License-Identifier: Apache-2.0
"""What processes that `python -m hvd_tf.as_horovod` has led to find as `horovod`."""

import sys

from hvd_tf.as_horovod import install_as_horovod

del sys.modules[__name__]
install_as_horovod()  # the import that is going on returns this one
