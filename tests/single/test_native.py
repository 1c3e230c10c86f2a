# SPDX-License-Identifier: Apache-2.0
"""native.py has the functions and numbers of the C headers. All are read, and nothing is loaded."""

from __future__ import annotations

import ast
import ctypes
import re
from typing import Any

from cpp_headers import enum_values, header
from mpi import ROOT

C_API = "adapter/c_api.h"
INTS, TEXT = ctypes.POINTER(ctypes.c_int), ctypes.c_char_p
# C types without const, as native.py writes them.
TYPES = {
    "void": None,
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "int*": INTS,
    "char*": TEXT,
    "char**": ctypes.POINTER(TEXT),
}


def constants_of_native() -> dict[str, Any]:
    """The constants of native.py, without its imports, which load TensorFlow and the library."""
    source = (ROOT / "hvd_tf" / "_internal" / "native.py").read_text()
    assignments: list[ast.stmt] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and "_load()" not in ast.unparse(node)
    ]
    names: dict[str, Any] = {"ctypes": ctypes, "Any": Any}
    exec(compile(ast.Module(assignments, []), "native.py", "exec"), names)
    return names


def prototypes_of(text: str) -> dict[str, tuple[Any, list[Any]]]:
    """The functions that a C header exports: the types of the result and of the arguments."""
    found = {}
    for result, name, arguments in re.findall(r"HVD_EXPORT\s+([\w\s*]+?)(\w+)\(([^)]*)\);", text):
        types = [re.sub(r"\w+$", "", one.strip()) for one in arguments.split(",") if one.strip()]
        found[name] = (type_of(result), [type_of(one) for one in types])
    return found


def type_of(c_type: str) -> Any:
    return TYPES["".join(word for word in re.findall(r"\w+|\*", c_type) if word != "const")]


NATIVE = constants_of_native()


def test_the_functions_are_those_of_the_header() -> None:
    text = header(C_API)
    functions = prototypes_of(text)
    # Each one was understood; the macro's definition is no function.
    assert len(functions) == text.count("HVD_EXPORT ") - 1 > 30
    assert NATIVE["_PROTOTYPES"] == functions


def test_a_prototype_is_understood() -> None:
    text = "HVD_EXPORT const char* a();\nHVD_EXPORT void b(const int* c,\n  int d, char** e);"
    assert prototypes_of(text) == {
        "a": (TEXT, []),
        "b": (None, [INTS, ctypes.c_int, ctypes.POINTER(TEXT)]),
    }


def test_the_codes_are_those_of_the_header() -> None:
    codes = enum_values("core/status.h", "StatusCode")
    assert codes.pop("kOk") == NATIVE["_OK"]
    assert set(codes.values()) == set(NATIVE["_EXCEPTIONS"])


def test_the_numbers_are_those_of_the_headers() -> None:
    assert enum_values(C_API, "HvdNoNumber") == {
        "HVD_NOT_INITIALISED": -1,
        "HVD_UNKNOWN_PROCESS_SET": NATIVE["UNKNOWN_PROCESS_SET"],
        "HVD_NOT_A_MEMBER": NATIVE["NOT_A_MEMBER"],
        "HVD_FAILED": NATIVE["_FAILED"],
    }
    ends = enum_values("core/peer_end.h", "PeerEndKind")
    assert (ends["kLeft"], ends["kGivenUp"]) == (NATIVE["PEER_LEFT"], NATIVE["PEER_GIVEN_UP"])
    slots = re.search(r"kProcessSetSlots = (\d+);", header("core/process_set.h"))
    assert slots is not None and int(slots[1]) == NATIVE["_MOST_PROCESS_SETS"]
