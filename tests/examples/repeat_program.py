# SPDX-License-Identifier: Apache-2.0
"""Trains the flights Estimator on made-up flights. Rank 0 prints its checkpoint's variables' marks.

    repeat_program.py '[{}, {"HVD_AUTOTUNE": "1"}]'

Once for each environment, which is set from `init` to `shutdown`. Two names are for this program:
HVD_TEST_DELAY_SEED=7: every rank sleeps at random around its steps.
HVD_TEST_TRAINING_SEED=2: another seed than 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "estimator_examples" / "flights"))

import tensorflow as tf
from data import Flights
from features import CATEGORICAL, NUMERIC
from inputs import training
from shards import prepare_on_all
from starting import limit_threads
from train import arguments, train

import hvd_tf as hvd

v1 = tf.compat.v1
RECORDS, STEPS = 6000, 25
LONGEST_DELAY_S = 0.02


class Delays(v1.train.SessionRunHook):
    """Sleeps before and after some steps."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def maybe_sleep(self) -> None:
        if self._rng.random() < 0.3:
            time.sleep(self._rng.uniform(0, LONGEST_DELAY_S))

    def before_run(self, _: v1.train.SessionRunContext) -> None:
        self.maybe_sleep()

    def after_run(self, *_: object) -> None:
        self.maybe_sleep()


def made_up() -> Flights:
    """Flights whose lateness follows from their features, more or less."""
    rng = np.random.default_rng(3)
    categorical = rng.integers(0, 300, (RECORDS, len(CATEGORICAL)), dtype=np.int32)
    numeric = rng.standard_normal((RECORDS, len(NUMERIC)), dtype=np.float32)
    late = (numeric[:, 0] + categorical[:, 0] % 3 > 1).astype(np.float32)
    return Flights(categorical, numeric, late, np.full(RECORDS, 101, np.int16))


def trained(folder: Path, settings: dict[str, str]) -> tf.estimator.Estimator:
    args = arguments(["--batch=128", f"--steps={STEPS}", "--threads=1"])
    args.seed = int(settings.get("HVD_TEST_TRAINING_SEED", "1"))
    watch = []
    if "HVD_TEST_DELAY_SEED" in settings:
        delay_seed = int(settings["HVD_TEST_DELAY_SEED"])
        watch.append(Delays(np.random.default_rng([delay_seed, hvd.rank()])))
    shards = prepare_on_all(hvd, Path("shards").absolute(), lambda: {"train": made_up()})
    share = training(hvd, shards, args.batch, args.seed, first_pass=0)
    estimator = train(args, hvd, share, folder, watch)
    hvd.allreduce(1.0, name="trained")  # all have
    return estimator


def main() -> None:
    v1.logging.set_verbosity(v1.logging.ERROR)
    # One thread: in which order TensorFlow's own kernels add in several is not ours to promise.
    limit_threads(1)
    for number, settings in enumerate(json.loads(sys.argv[1])):
        os.environ.update(settings)
        hvd.init()
        estimator = trained(Path(f"model-{number}"), settings)
        if hvd.rank() == 0:
            for name in sorted(estimator.get_variable_names()):
                bits = np.ascontiguousarray(estimator.get_variable_value(name)).tobytes()
                print("variable", number, name, hashlib.sha256(bits).hexdigest(), flush=True)
        hvd.shutdown()
        for name in settings:
            del os.environ[name]


if __name__ == "__main__":
    main()
