# SPDX-License-Identifier: Apache-2.0
"""What a file of tests/multi says about itself, found without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from cases import ALL, ONE_SIZE
from fake_gpu import IS_REAL

# See multirank.py.
SETTINGS = ("RANKS", "HOSTS", "IN_FULL", "GPU", "TIMEOUT_S", "OWN_INIT", "ALONE")


def _one_of(counts: tuple[int, ...]) -> int:
    return 2 if 2 in counts else max(counts)


def runs_of(constants: dict[str, Any]) -> list[tuple[int, str | None]]:
    """Numbers of ranks, and hosts, that a file is to be run with."""
    counts, hosts = constants.get("RANKS", (2,)), constants.get("HOSTS", ())
    if ONE_SIZE and counts:
        return [(_one_of(counts), None)]
    wanted = [*counts, *((hosts,) if isinstance(hosts, str) else hosts)]
    if ALL:
        wanted = list(dict.fromkeys([*wanted, *constants.get("IN_FULL", ())]))
    return _shapes_of(wanted)


def gpu_runs_of(constants: dict[str, Any]) -> list[tuple[int, str | None]]:
    """Numbers of ranks, and hosts, that a file is to be run with on a GPU."""
    wanted = constants.get("GPU", ())
    if IS_REAL and "GPU" not in constants:
        # What needs kernels of TensorFlow has them there.
        wanted = (_one_of(constants.get("RANKS") or (2,)),)
    if ONE_SIZE and not IS_REAL and constants.get("RANKS", (2,)):
        return []  # what differs between versions is how TensorFlow gets on with a GPU
    counts = tuple(want for want in wanted if not isinstance(want, str))
    return _shapes_of((_one_of(counts),) if ONE_SIZE and counts else wanted)


def _shapes_of(wanted: Iterable[int | str]) -> list[tuple[int, str | None]]:
    """Of each, the number of ranks, and the hosts where it is such as "2x2"."""
    runs: list[tuple[int, str | None]] = []
    for want in wanted:
        if isinstance(want, str):
            count, each = want.split("x")
            runs.append((int(count) * int(each), want))
        else:
            runs.append((want, None))
    return runs


def constants_of(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id in SETTINGS:
                yield node.targets[0].id, ast.literal_eval(node.value)


def tests_of(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Test functions, and the words in their decorators, which the ids of cases are made of."""
    globals_ = {
        node.targets[0].id: _words(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            raise pytest.Collector.CollectError(
                f"class {node.name}: write functions in tests/multi"
            )
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            words = set().union(*map(_words, node.decorator_list))
            yield node.name, words.union(*(globals_.get(word, set()) for word in words))


def _words(tree: ast.AST) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    parts = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    values = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return names | parts | values
