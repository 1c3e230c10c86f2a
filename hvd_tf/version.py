# SPDX-License-Identifier: Apache-2.0
"""The version of this build. The build wrote it into a file beside the library."""

from __future__ import annotations

import json
from pathlib import Path

__version__: str = json.loads(Path(__file__).with_name("_build_info.json").read_text())["hvd_tf"]
