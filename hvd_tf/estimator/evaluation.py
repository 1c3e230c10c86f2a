# SPDX-License-Identifier: Apache-2.0
"""`evaluate`: an Estimator's evaluation by all ranks together, every record once."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat import v1
from hvd_tf._internal.facts import ERROR, TRAINED_ALREADY, check_same, exchange, exchange_at
from hvd_tf._internal.meeting import Meeting, everywhere, on_rank_0
from hvd_tf._internal.runtime import rank, size
from hvd_tf.data.contents import difference_of
from hvd_tf.data.marks import are_shares
from hvd_tf.estimator import evaluation_summary
from hvd_tf.estimator.evaluation_hooks import HookGuard
from hvd_tf.estimator.evaluation_model import EvaluationModel

_WHAT = "evaluate"
_LENGTH = "the length of the dataset"
_SEEDS = "the seeds of a shuffle in the dataset"
_REMEDIES = {
    _LENGTH: "Give the same dataset on every rank: evaluate shares it out. Or give each rank "
    'its share by Dataset.shard(size, rank) or hvd.data.shard(uneven="keep")',
    _SEEDS: "Each rank would take its batches from an order of its own: shuffle without a seed, or "
    "with the same one on every rank (with run_config, config.tf_random_seed differs by rank)",
}


def evaluate(
    estimator: Any,
    input_fn: Callable[..., Any],
    steps: Optional[int] = None,
    hooks: Optional[Sequence[v1.train.SessionRunHook]] = None,
    checkpoint_path: Optional[str] = None,
    name: Optional[str] = None,
) -> dict[str, Any]:
    """Evaluates a model on all ranks together. Call it on every rank with the same arguments.

    Every rank calls `input_fn`. It returns the same dataset on every rank, and the ranks take its
    batches in turn. Or it returns each rank's share, made by `hvd.data.shard(uneven="keep")` or by
    `Dataset.shard`, which that rank alone reads. The ranks' metrics are added up once, at the end,
    in float64 and int64. So the results are those of one process, whatever the number of ranks.
    Rank 0's weights are used. They are sent to the others, which need no access to its disk.

    For that, each metric's update must only add to its variables, and what it adds must depend on
    the batch and the model alone. That holds for mean, accuracy, precision, recall, AUC and
    confusion matrices. If it does not hold for one metric, or the batches cannot be shared, rank 0
    evaluates alone and the others wait. A warning says why.

    One thing differs from `Estimator.evaluate`: `loss` is the mean over the examples, not over the
    batches. So it does not depend on which rank got the smaller last batch.

    Args:
      estimator: a tf.estimator.Estimator. Only rank 0's model_dir is used.
      input_fn: as for Estimator.evaluate.
      steps: how many batches to evaluate, over all ranks; None for all.
      hooks: run on every rank that evaluates, each in its own session. None may need a collective
        between the first batch and the last one, as MetricAverageHook does.
      checkpoint_path: a path on rank 0. The default is its latest checkpoint. If there is none,
        weights are newly initialised, or those of its `warm_start_from`.
      name: the name of this evaluation, for the folder of summaries that rank 0 writes.

    Returns:
      The metrics by name, "loss" and "global_step": the same values on every rank.

    Raises:
      ValueError: on every rank, if arguments or datasets are wrong or differ between ranks, or if
        the loss, a metric or a hook needs a collective.
      RuntimeError: on the other ranks, if one could not build its graph or failed in its share. It
        has that rank's error. That rank raises the error itself.
    """
    seed = _agree(estimator, steps, name, checkpoint_path)
    latest = (checkpoint_path or estimator.latest_checkpoint()) if rank() == 0 else None
    share = (size(), rank()) if size() > 1 else None
    read = functools.partial(EvaluationModel, estimator, input_fn, steps, seed, latest)
    model = everywhere(lambda: read(share), _WHAT)
    if share:
        _agree_on_parts(model)
    everywhere(model.build, _WHAT)
    if share:
        _check_alike(model)
    if share and model.obstacle:
        if rank() == 0:
            v1.logging.warning(f"hvd_tf: rank 0 evaluates alone, because {model.obstacle}")
        return on_rank_0(lambda: _run_alone(read(None), hooks, name), _WHAT)
    return _run(model, hooks, name)


def _run_alone(
    model: EvaluationModel,
    hooks: Optional[Sequence[v1.train.SessionRunHook]],
    name: Optional[str],
) -> dict[str, Any]:
    model.build()
    return _run(model, hooks, name)


def _run(
    model: EvaluationModel,
    hooks: Optional[Sequence[v1.train.SessionRunHook]],
    name: Optional[str],
) -> dict[str, Any]:
    """Evaluates this rank's share, or all. Returns the results of all ranks' shares."""
    meeting = Meeting(_WHAT, of_ranks=model.share is not None)
    finish = _Finish(model, meeting)
    try:
        with (
            model.graph.as_default(),
            v1.train.SingularMonitoredSession(
                hooks=[
                    HookGuard(alone=model.share is None),
                    _Start(model, meeting),
                    *model.hooks,
                    *(hooks or ()),
                    finish,
                ],
                scaffold=model.scaffold,
                config=model.estimator.config.session_config,
                checkpoint_filename_with_path=model.checkpoint,
            ) as session,
        ):
            while not session.should_stop():
                session.run(model.update_op)
    except Exception as error:
        meeting.fail(error)
        raise
    if rank() == 0:
        _report(model, name, finish.results)
    return finish.results


class _Start(v1.train.SessionRunHook):
    """Gives the session rank 0's weights."""

    def __init__(self, model: EvaluationModel, meeting: Meeting) -> None:
        self._model = model
        self._meeting = meeting

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        del coord
        if self._model.initializer is not None:
            session.run(self._model.initializer)
        # Rank 0 may have failed to restore. Then no rank may wait for its weights.
        self._meeting.meet()
        if self._model.share:
            self._model.variables.check(session)
            self._model.variables.broadcast(session)
            self._model.sums.remember(session)


class _Finish(v1.train.SessionRunHook):
    """Adds up the ranks' metrics and reads them, after the last batch of every rank."""

    def __init__(self, model: EvaluationModel, meeting: Meeting) -> None:
        self._model = model
        self._meeting = meeting
        self.results: dict[str, Any] = {}

    def end(self, session: v1.Session) -> None:
        self._meeting.meet()
        if self._model.share:
            self._model.sums.sum(session)
        self.results = session.run(self._model.values)


def _agree(
    estimator: Any, steps: Optional[int], name: Optional[str], checkpoint_path: Optional[str]
) -> int:
    """Checks the arguments of all ranks together. Returns the seed of rank 0."""
    wrong = ""
    if steps is not None and steps <= 0:
        wrong = f"steps is {steps}; give at least 1, or None for the whole input"
    elif rank() == 0 and checkpoint_path and not v1.train.checkpoint_exists(checkpoint_path):
        wrong = f"there is no checkpoint {checkpoint_path!r}, as checkpoint_path says on rank 0"
    seed = estimator.config.tf_random_seed
    if seed is None:
        seed = random.SystemRandom().getrandbits(31)
    mine = {ERROR: wrong and f"evaluate: {wrong}", "steps": steps, "name": name, "seed": seed}
    everyones = exchange_at("evaluate", mine, TRAINED_ALREADY)
    for fact in ("steps", "name"):
        check_same(everyones, fact, f"evaluate: {fact}", "Give the same on every rank")
    return everyones[0]["seed"]


def _agree_on_parts(model: EvaluationModel) -> None:
    """Finds out whether Dataset.shard has given each rank its share, or all ranks one part.

    Raises ValueError on every rank if it has done neither.
    """
    source = model.source
    facts = {"is_share": source.is_share, "parts": source.parts}
    everyones = exchange(facts, f"{_WHAT}/parts")
    if any(theirs["is_share"] for theirs in everyones):
        return  # by hvd.data, as it must be on every rank
    try:
        source.is_share = are_shares([theirs["parts"] for theirs in everyones])
    except ValueError as error:
        raise ValueError(f"{_WHAT}: {error}") from None


def _check_alike(model: EvaluationModel) -> None:
    """Raises ValueError on every rank if the ranks cannot evaluate together."""
    source = model.source
    mine = {
        "the list of metrics": sorted(model.values),
        "the state of their metrics": [(v.name, v.dtype.name, str(v.shape)) for v in model.states],
        "what keeps them from sharing the batches": model.obstacle,
        "whether input_fn gives a share of the batches already": source.is_share,
        _LENGTH: None if model.obstacle else source.length,
        _SEEDS: None if model.obstacle else source.seeds,
    }
    # Where rank 0 evaluates alone, the others' data does not count.
    contents = [] if model.obstacle else source.contents
    everyones = exchange({**mine, "contents": contents}, f"{_WHAT}/model")
    for fact in mine:
        remedy = _REMEDIES.get(fact, "Build the same input and the same model on every rank")
        check_same(everyones, fact, f"evaluate: {fact}", remedy)
    if difference := difference_of([theirs["contents"] for theirs in everyones]):
        raise ValueError(
            f"evaluate: the arrays or the names of files of its dataset differ: {difference}. "
            f"{_REMEDIES[_LENGTH]}"
        )
    if model.obstacle and source.is_share:
        raise ValueError(
            f"evaluate: {model.obstacle}. Rank 0 would have to see all batches, but input_fn gives "
            "each rank its share of them: return all; evaluate shares them out itself"
        )


def _report(model: EvaluationModel, name: Optional[str], results: Mapping[str, Any]) -> None:
    step = int(results[v1.GraphKeys.GLOBAL_STEP])
    shown = ", ".join(
        f"{key} = {value}" for key, value in sorted(results.items()) if not isinstance(value, bytes)
    )
    v1.logging.info(f"Evaluation of {model.weights}, loss over examples: {shown}")
    with tf.Graph().as_default():  # event files are written by graph code
        evaluation_summary.write(model.estimator.eval_dir(name), results, step)
