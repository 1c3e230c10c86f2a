# SPDX-License-Identifier: Apache-2.0
"""hvd_tf.estimator in processes of their own: when TensorFlow loads, and what is cleaned up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cases import needs_estimator


def run(program: str, **environ: str) -> str:
    """What the program prints. It must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environ},
        timeout=120,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    return done.stdout


def test_tensorflow_loads_with_the_toolkit_and_not_before() -> None:
    run(
        "import sys, hvd_tf as hvd; assert 'tensorflow' not in sys.modules\n"
        "assert hvd.estimator.scale_steps and 'tensorflow' in sys.modules\n"
        "assert 'estimator' in dir(hvd)"
    )


@needs_estimator
def test_eager_code_has_the_threads_of_the_sessions() -> None:
    """What runs first sizes TensorFlow's pool of intra-op threads: here 21 or 23."""
    program = (
        # On one core, for TensorFlow's own choice is a thread for each.
        "import os\nos.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})\n"
        "import tensorflow as tf, hvd_tf as hvd\nhvd.init()\n"
        "def threads():\n    return len(os.listdir('/proc/self/task'))\n"
        "asked = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=21)\n"
        "asked.inter_op_parallelism_threads = 23\n"
        "before = threads()\n"
        "{first}\n"
        "hvd.estimator.run_config(session_config=asked)\n"
        "(tf.ones([2]) + 1).numpy()\n"
        "print(threads() - before >= 21 + 23)"
    )
    assert run(program.format(first="")) == "True\n"
    assert run(program.format(first="tf.ones([2]).numpy()")) == "False\n"  # too late, and no error


def test_private_directories_go_with_the_process(tmp_path: Path) -> None:
    """As on rank 1 of a job, so far as model_dir can tell. A child that was forked cleans nothing.

    HVD_JOB_DIR of another host, which is not there, is no obstacle.
    """
    printed = run(
        "import os\nfrom hvd_tf.estimator import directory\n"
        "directory.rank = lambda: 1\n"
        "path = directory.model_dir('model')\n"
        "open(path + '/file', 'w').close()\n"
        "if os.fork() == 0:\n    raise SystemExit\n"
        "os.wait()\nprint(os.path.isfile(path + '/file'), path)",
        TMPDIR=str(tmp_path),
        HVD_JOB_DIR=str(tmp_path / "elsewhere"),
    )
    assert printed.startswith(f"True {tmp_path}/hvd_tf-model-")
    assert not list(tmp_path.glob("hvd_tf-model-*"))


def test_private_directories_lie_in_the_jobs_own(tmp_path: Path) -> None:
    """Which the launcher removes, also after ranks that were killed."""
    printed = run(
        "from hvd_tf.estimator import directory\n"
        "directory.rank = lambda: 1\nprint(directory.model_dir('model'))",
        HVD_JOB_DIR=str(tmp_path),
    )
    assert printed.startswith(f"{tmp_path}/hvd_tf-model-")
