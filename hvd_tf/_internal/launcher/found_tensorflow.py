# SPDX-License-Identifier: Apache-2.0
"""Which distribution the TensorFlow is of that an import would find. Imports none."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

_FRAMEWORK = "libtensorflow_framework.so.2"
_RECORD = re.compile(rf"^tensorflow/{re.escape(_FRAMEWORK)},[^,\n]*,(\d*)\s*$", re.MULTILINE)


class Found(NamedTuple):
    """A distribution: its name, spelled as on PyPI, and its version."""

    name: str
    version: str


def find() -> Found | None:
    """None where no distribution has it, or it cannot be told which of several."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(spec.submodule_search_locations[0])
    try:
        size = (root / _FRAMEWORK).stat().st_size
        # Others, such as tensorflow-estimator, are many, and the list of files is long.
        directories = [
            path
            for pattern in ("*tensorflow*.dist-info", "tf_nightly*.dist-info")
            for path in root.parent.glob(pattern)
        ]
        # All flavours write into one folder. The list of the last one has the size that is there.
        owners = [path for path in directories if _wrote(path, size)]
    except OSError:
        return None
    return _described(owners[0]) if len(owners) == 1 else None


def _wrote(directory: Path, size: int) -> bool:
    record = directory / "RECORD"
    match = _RECORD.search(record.read_text()) if record.is_file() else None
    return match is not None and match[1] in ("", str(size))


def _described(directory: Path) -> Found:
    # Imported here, for it takes longer than all the rest.
    from importlib import metadata

    distribution = metadata.Distribution.at(directory)
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    return Found(name, distribution.version)
