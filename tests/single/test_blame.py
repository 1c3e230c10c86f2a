# SPDX-License-Identifier: Apache-2.0
"""Which exceptions are a peer's fault: told by their causes, whatever they say."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import pytest
from cpp_headers import enum_values
from mpi import ROOT

# The library's usual words, and any others.
WORDS = [
    "rank 0 (host a) failed: KeyError: 'x'",
    "'x' will not come from rank 0: its training loop ended",
    "it failed because rank 0 (host a) aborted its step: no",
    "something else",
    "",
]


class OpError(Exception):
    """As TensorFlow makes it."""

    node_def, error_code = None, 2

    def __init__(self, text: str, payload: bytes = b"", op: Any = None) -> None:
        super().__init__(text)
        self.op = op
        self.experimental_payloads = {b"hvd_tf/cause": payload} if payload else {}


def operation(type: str, name: str = "node", **names: Any) -> Any:
    """An operation of a graph. `names`: those attributes of the collectives that it has."""
    attributes = {
        key: types.SimpleNamespace(
            s=b"" if isinstance(value, list) else value,
            list=types.SimpleNamespace(s=value if isinstance(value, list) else []),
        )
        for key, value in {"tensor_name": b"", "tensor_names": [], **names}.items()
    }
    return types.SimpleNamespace(
        type=type, name=name, node_def=types.SimpleNamespace(attr=attributes)
    )


class Library:
    """Rank 1 of a job, and what it has told TensorFlow, by the name of the call."""

    def __init__(self) -> None:
        self.told: dict[bytes | None, tuple[int, int]] = {}

    def hvd_rank(self) -> int:
        return 1

    def hvd_cause_of(self, name: bytes | None, rank: Any, tensor: Any) -> int:
        kind, rank._obj.value = self.told.get(name, (0, -1))
        tensor._obj.value = b"begun"
        return kind


@pytest.fixture
def hvd(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules, above an invented library."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "hvd_tf"]:
        monkeypatch.delitem(sys.modules, name)
    package = types.ModuleType("hvd_tf")
    package.__path__ = [str(ROOT / "hvd_tf")]
    native = types.ModuleType("native")
    native.lib = Library()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hvd_tf", package)
    monkeypatch.setitem(sys.modules, "hvd_tf._internal.native", native)
    blame, causes = (
        importlib.import_module(f"hvd_tf._internal.{name}") for name in ("blame", "causes")
    )
    yield types.SimpleNamespace(blame=blame, causes=causes, lib=native.lib)
    for name in ("blame", "causes"):
        sys.modules.pop(f"hvd_tf._internal.{name}", None)


def raised(error: BaseException, handled: BaseException, hides: bool = False) -> BaseException:
    """The error, as raised while the other one was handled."""
    try:
        try:
            raise handled
        except BaseException:
            if hides:
                raise error from None
            raise error  # noqa: B904
    except BaseException as caught:
        return caught


def found(hvd: Any, error: BaseException) -> tuple[str, int, bool] | None:
    cause = hvd.blame.find_cause(error)
    return cause and (cause.kind.name, cause.rank, hvd.blame.blames_peer(cause))


@pytest.mark.parametrize("words", WORDS)
def test_a_cause_that_tensorflow_passes_on(hvd: Any, words: str) -> None:
    for kind in hvd.causes.Kind:
        for rank in (0, 1, 12):
            payload = f"{kind.value} {rank} 4 a b:{words}".encode()
            error = OpError(words, payload)
            blames = kind.name != "RANKS_DIFFER" and rank != 1
            assert found(hvd, error) == (kind.name, rank, blames)
            cause = hvd.causes.cause_of(error)
            assert (cause.tensor, cause.message) == ("a b:", words)


@pytest.mark.parametrize("words", WORDS)
def test_a_cause_among_the_errors_before(hvd: Any, words: str) -> None:
    root = OpError(words, b"4 0 0 ")
    expected = ("RANK_LEFT", 0, True)
    assert found(hvd, raised(TypeError(words), root)) == expected
    assert found(hvd, raised(TypeError(words), root, hides=True)) is None  # nobody sees it
    # As sessions do, and as MonitoredSession does when it has asked its coordinator.
    of_graph = operation("MatMul")
    assert found(hvd, raised(OpError(words, op=of_graph), root)) == expected
    assert found(hvd, raised(OpError(words, op=of_graph), root, hides=True)) == expected
    # A ring, as a program can make one.
    ring = ValueError(words)
    ring.__cause__ = ring
    assert found(hvd, ring) is None


@pytest.mark.parametrize("words", WORDS)
def test_a_collective_of_a_graph_is_asked_for_by_its_name(hvd: Any, words: str) -> None:
    hvd.lib.told = {b"x": (1, 0), None: (2, 0)}
    for op in (
        operation("HorovodAllreduce", tensor_name=b"x"),
        operation("HorovodAllgather", "x"),
        operation("HorovodBroadcastVariables", tensor_names=[b"w", b"x"]),
    ):
        error = OpError(words, op=op)
        assert found(hvd, error) == ("STEP_ABORTED", 0, True)
        # In a lost step it is the tensor that was waited for, not the one whose call failed first.
        assert hvd.blame.find_cause(error).tensor == "begun"
    assert found(hvd, OpError(words, op=operation("HorovodAllreduce", tensor_name=b"y"))) is None
    assert found(hvd, OpError(words, op=operation("MatMul", "x"))) is None


@pytest.mark.parametrize("words", WORDS)
def test_where_tensorflow_passes_on_the_words_alone(hvd: Any, words: str) -> None:
    errors = [
        OpError(words),
        OpError(words, op=operation("IteratorGetNext")),
        OpError(words, op=operation("EagerPyFunc")),
    ]
    for error in errors:
        assert found(hvd, error) is None
        hvd.lib.told = {None: (3, 0)}
        assert found(hvd, error) == ("RANK_FAILED", 0, True)
        hvd.blame.hide(hvd.causes.Cause(hvd.causes.Kind.SCOPE_ENDED, 2))
        assert found(hvd, error) == ("SCOPE_ENDED", 2, True)
        assert found(hvd, ValueError(words)) is None
        hvd.blame.hide(None)
        hvd.lib.told = {}


@pytest.mark.parametrize("words", WORDS)
def test_a_cause_that_an_error_of_ours_carries(hvd: Any, words: str) -> None:
    kind = hvd.causes.Kind.CALL_FAILED
    error = hvd.causes.caused(RuntimeError(words), hvd.causes.Cause(kind, 0, "evaluate"))
    assert str(error) == words and found(hvd, error) == ("CALL_FAILED", 0, True)
    assert found(hvd, RuntimeError(words)) is None


def test_the_kinds_are_those_of_the_library(hvd: Any) -> None:
    expected = {
        "k" + "".join(part.title() for part in kind.name.split("_")): kind.value
        for kind in hvd.causes.Kind
    }
    assert enum_values("core/status.h", "CauseKind") == expected
