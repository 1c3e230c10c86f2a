# SPDX-License-Identifier: Apache-2.0
"""The module that an object of ours shows itself to be of, where hvd_tf is imported as horovod.

Packages tell a distributed optimizer by "horovod" in its text or module.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_PLACE = Path(__file__).parent / "horovod" / "__init__.py"


def is_horovod() -> bool:
    """Whether `import horovod` finds hvd_tf in this process."""
    return getattr(sys.modules.get("horovod"), "__file__", None) == str(_PLACE)


def text_of(thing: Any, module: str) -> str:
    """What Python shows of an object that has no text of its own, of a class in this module."""
    return f"<{module}.{type(thing).__name__} object at {id(thing):#x}>"
