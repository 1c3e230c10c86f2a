# SPDX-License-Identifier: Apache-2.0
"""fit: one rank writes files and shows the progress; a backup is restored on all."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import tensorflow as tf
from cases import BEST_MODEL

from hvd_tf import keras as hvd_keras
from hvd_tf._internal.keras import progress

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
HAS_BOARD = importlib.util.find_spec("tensorboard") is not None
FAMILIES = ["new"] if IS_KERAS_3 else ["new", "legacy"]


def make_model(optimizers=keras.optimizers):
    keras.utils.set_random_seed(7)
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(1, name="last")(inputs))
    optimizer = optimizers.SGD(0.05, momentum=0.9)
    model.compile(hvd_keras.DistributedOptimizer(optimizer), "mse")
    return model


def fit(model, rank, *used, epochs=1, **arguments):
    rng = np.random.default_rng([23, rank])
    x, y = (rng.standard_normal((8, width)).astype(np.float32) for width in (3, 1))
    return model.fit(
        x, y, batch_size=4, shuffle=False, epochs=epochs, callbacks=list(used), **arguments
    )


def weights_of(model):
    return [variable.numpy() for variable in model.trainable_variables]


@pytest.fixture
def shared(hvd, rank, tmp_path):
    """A directory of all ranks."""
    return hvd.broadcast_object(tmp_path, 0)


def test_rank_0_shows_the_progress(hvd, rank, capsys):
    fit(make_model(), rank)
    assert ("loss" in capsys.readouterr().out) == (rank == 0)
    fit(make_model(), rank, verbose=2)
    assert "loss" in capsys.readouterr().out
    fit(make_model(), rank, verbose=0)
    assert capsys.readouterr().out == ""


def test_the_progress_is_shown_while_it_goes_on(rank, capsys, monkeypatch):
    """A launcher passes on whole lines only, so the bar of the first batch is one."""

    def lines():
        fit(make_model(), rank)
        return capsys.readouterr().out.count("\n")

    monkeypatch.setattr(progress, "_INTERVAL_S", 0.0)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    without = lines()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
    assert lines() == without + (rank == 0)


@pytest.mark.skipif(not IS_KERAS_3, reason="there tf.keras is Keras 2 itself")
def test_a_model_of_tf_keras_beside_keras_3(rank, capsys):
    keras_2 = pytest.importorskip("tf_keras")
    model = keras_2.Sequential([keras_2.layers.Dense(1, input_shape=(3,))])
    model.compile(hvd_keras.DistributedOptimizer(keras_2.optimizers.SGD(0.05)), "mse")
    fit(model, rank)
    assert ("loss" in capsys.readouterr().out) == (rank == 0)


class Checkpoint(keras.callbacks.ModelCheckpoint):
    """Averages something over the ranks, as a program may, and notes that it was called."""

    called = 0

    def on_epoch_end(self, epoch, logs=None):
        self.called += 1
        hvd_keras.allreduce(1.0, name=f"called {self.called}")
        super().on_epoch_end(epoch, logs)


def saves_of(model):
    """A list of the paths that a model is saved to from now on."""
    saves, save = [], model.save

    def noted(path, *args, **kwargs):
        saves.append(path)
        return save(path, *args, **kwargs)

    object.__setattr__(model, "save", noted)
    return saves


def test_the_lowest_rank_writes_a_file(hvd, rank, size, shared):
    same = Checkpoint(str(shared / "model.keras"))
    own = keras.callbacks.ModelCheckpoint(str(shared / f"model-{rank}.keras"))
    csv = keras.callbacks.CSVLogger(str(shared / "log.csv"))
    used = [same, own, csv]
    if HAS_BOARD:
        used.append(keras.callbacks.TensorBoard(str(shared / "logs")))
    model = make_model()
    saves = saves_of(model)
    fit(model, rank, *used, verbose=0, epochs=2)
    assert same.called == 2 and type(same) is Checkpoint
    assert saves.count(same.filepath) == (2 if rank == 0 else 0)
    assert saves.count(own.filepath) == 2
    hvd.allgather_object(None)  # all have written
    assert len((shared / "log.csv").read_text().splitlines()) == 3
    assert sorted(path.name for path in shared.glob("*.keras")) == sorted(
        ["model.keras", *(f"model-{i}.keras" for i in range(size))]
    )
    if HAS_BOARD:
        assert len(list((shared / "logs" / "train").iterdir())) == 1


def test_a_callback_of_one_rank_stays(hvd, rank, size, shared):
    last = rank == size - 1
    used = [keras.callbacks.ModelCheckpoint(str(shared / "last.keras"))] if last else []
    fit(make_model(), rank, *used, verbose=0)
    hvd.allgather_object(None)
    assert (shared / "last.keras").exists()


class Guarded(keras.callbacks.ModelCheckpoint):
    """As programs for Horovod are written."""

    def on_epoch_end(self, epoch, logs=None):
        loss = float(hvd_keras.allreduce(logs["loss"], name="my loss"))
        if hvd_keras.rank() == 0:
            super().on_epoch_end(epoch, {"loss": loss})


def test_a_callback_that_guards_itself(hvd, rank, shared):
    best = Guarded(str(shared / f"best{BEST_MODEL}"), monitor="loss", save_best_only=True)
    fit(make_model(), rank, best, verbose=0, epochs=2)
    hvd.allgather_object(None)
    assert (shared / f"best{BEST_MODEL}").exists()


class Sharded(keras.callbacks.ModelCheckpoint):
    """Each rank writes a part of its own, as packages with tables on all ranks do."""

    saved = 0

    def _save_model(self, epoch, *args, **kwargs):
        self.saved += 1
        hvd_keras.allreduce(1.0, name=f"saved {self.saved}")


def test_a_callback_that_saves_on_all_ranks(hvd, rank, shared):
    sharded = Sharded(str(shared / "sharded.keras"))
    fit(make_model(), rank, sharded, verbose=0, epochs=2)
    assert sharded.saved == 2 and type(sharded) is Sharded


@pytest.mark.skipif(not HAS_BOARD, reason="TensorBoard is not installed")
def test_a_board_of_the_program_s_own(hvd, rank, shared):
    class Board(keras.callbacks.TensorBoard):
        def on_epoch_end(self, epoch, logs=None):
            total = hvd_keras.allreduce(1.0, name=f"board {epoch}", op=hvd_keras.Sum)
            with self._train_writer.as_default():
                tf.summary.scalar("total", total, epoch)
            super().on_epoch_end(epoch, logs)

    fit(make_model(), rank, Board(str(shared / "logs")), verbose=0, epochs=2)
    hvd.allgather_object(None)
    assert len(list((shared / "logs" / "train").iterdir())) == 1


class OwnClass(keras.callbacks.Callback):
    """Only has the name and the attribute of one of Keras."""

    filepath = "none"
    called = 0

    def on_epoch_end(self, epoch, logs=None):
        self.called += 1


def test_a_class_that_only_has_the_name_of_one_of_keras(rank):
    callback = type("ModelCheckpoint", (OwnClass,), {})()
    fit(make_model(), rank, callback, verbose=0)
    assert callback.called == 1


class BoomError(Exception):
    """Ends a training."""


class Fail(keras.callbacks.Callback):
    """Fails in the middle of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epochs = []
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append(epoch)

    def on_train_batch_end(self, batch, logs=None):
        if self.epochs[-1] == self.epoch:
            raise BoomError


@pytest.mark.parametrize("who", ["all", "rank 0", "own directories"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_backup_is_restored_on_all(hvd, rank, size, shared, family, who):
    optimizers = keras.optimizers if family == "new" else keras.optimizers.legacy
    alone = make_model(optimizers)
    fit(alone, rank, epochs=4, verbose=0)

    def backup():
        if who == "rank 0" and rank:
            return []
        name = str(rank) if who == "own directories" else "backup"
        return [keras.callbacks.BackupAndRestore(str(shared / name))]

    broadcast = hvd_keras.callbacks.BroadcastGlobalVariablesCallback
    with pytest.raises(BoomError):
        fit(make_model(optimizers), rank, broadcast(0), *backup(), Fail(2), epochs=4, verbose=0)
    hvd.allgather_object(None)
    model, seen = make_model(optimizers), Fail(None)
    if rank:  # only what is restored tells
        model.get_layer("last").kernel.assign_add(tf.ones([3, 1]))
    fit(model, rank, broadcast(0), *backup(), seen, epochs=4, verbose=0)
    assert seen.epochs == [2, 3]
    for got, expected in zip(weights_of(model), weights_of(alone)):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)
    # The next one begins at its beginning.
    again = Fail(None)
    fit(model, rank, again, epochs=1, verbose=0)
    assert again.epochs == [0]


def test_a_backup_that_is_not_there_yet(hvd, rank, shared):
    seen = Fail(None)
    fit(
        make_model(),
        rank,
        keras.callbacks.BackupAndRestore(str(shared / "none")),
        seen,
        epochs=2,
        verbose=0,
    )
    assert seen.epochs == [0, 1]


def test_a_backup_beside_a_list_of_kerass_own(hvd, rank, shared):
    """A CallbackList stays as it is, so that the ranks would not meet for what is restored."""
    model, seen = make_model(), Fail(None)
    if rank == 0:
        used = [keras.callbacks.BackupAndRestore(str(shared / "backup")), seen]
    else:
        used = keras.callbacks.CallbackList([seen], add_history=True, model=model, epochs=1)
    x, y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    model.fit(x, y, batch_size=4, shuffle=False, callbacks=used, verbose=0)
    assert seen.epochs == [0] and len(model.history.history["loss"]) == 1


@pytest.mark.parametrize("built", ["rank 0", "none"])
def test_a_model_that_some_ranks_have_built(hvd, rank, size, built):
    """As where rank 0 alone has loaded weights. Else fit builds it in the first step."""
    model = keras.Sequential([keras.layers.Dense(1, name="last")])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.05)), "mse")
    if rank == 0 and built == "rank 0":
        model.build((None, 3))
    fit(model, rank, hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), epochs=2)
    for theirs in hvd.allgather_object(weights_of(model)):
        for one, other in zip(theirs, weights_of(model)):
            np.testing.assert_array_equal(one, other)
