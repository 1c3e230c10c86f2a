# SPDX-License-Identifier: Apache-2.0
"""What tests read in the C++ headers of tf_ops, which Python code has to agree with."""

from __future__ import annotations

import re

from mpi import ROOT


def header(name: str) -> str:
    """The text of a header of tf_ops, without comments."""
    return re.sub(r"//.*", "", (ROOT / "tf_ops" / name).read_text())


def enum_values(name: str, enum: str) -> dict[str, int]:
    """The enumerators of an enum in that header. Each has its value written down."""
    body = re.search(rf"enum (?:class )?{enum}\b[^{{;]*{{([^}}]*)}}", header(name))
    assert body is not None, f"no enum {enum} in {name}"
    lines = [line.strip() for line in body[1].split(",") if line.strip()]
    return {key.strip(): int(value) for key, value in (line.split("=") for line in lines)}
