# SPDX-License-Identifier: Apache-2.0
"""A job over hosts: each rank writes what it knows. `hosts_program.py DIRECTORY [forever]`."""

import json
import os
import socket
import sys
from pathlib import Path

import numpy as np

import hvd_tf as hvd

hvd.init()
total = hvd.allreduce(np.float64(hvd.rank() + 1), op=hvd.Sum, name="ranks")
NAMES = ("HVD_A", "MINE", "PRIVATE", "HVD_JOB_DIR", "HVD_RESTART")
facts = {
    "host": socket.gethostname(),
    "local_rank": hvd.local_rank(),
    "cross_rank": hvd.cross_rank(),
    "total": float(total),
    "arguments": sys.argv[2:],
    "pid": os.getpid(),
    "variables": {name: os.environ.get(name) for name in NAMES},
    "backing": os.environ.get("OMPI_MCA_btl_sm_backing_directory"),
}
directory = Path(sys.argv[1])
(directory / f"draft-{hvd.rank()}").write_text(json.dumps(facts))
(directory / f"draft-{hvd.rank()}").rename(directory / f"facts-{hvd.rank()}.json")
print("written", flush=True)
while "forever" in sys.argv:
    hvd.allreduce(np.ones(1000, np.float32), name="ones")
