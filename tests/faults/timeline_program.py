# SPDX-License-Identifier: Apache-2.0
"""A job with a timeline, of which a rank is killed: some steps, and then none. No arguments."""

import os
import time
from pathlib import Path

import hvd_tf as hvd

STEPS = 200

hvd.init()
Path(os.environ["HVD_TEST_DIR"], f"rank-{hvd.rank()}.pid").write_text(str(os.getpid()))
for count in range(STEPS):
    hvd.allreduce(1.0, name=f"step {count}")
# From here on nothing but time makes anybody write.
print("at rest", flush=True)
time.sleep(1000)
