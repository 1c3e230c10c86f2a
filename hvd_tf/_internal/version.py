# SPDX-License-Identifier: Apache-2.0
"""The version of this build. The build wrote it into a file beside the library."""

from __future__ import annotations

import json

from hvd_tf._internal.build_stamp import BUILD_INFO

# Empty where nothing was built. `check_build` says so.
__version__: str = json.loads(BUILD_INFO.read_text())["hvd_tf"] if BUILD_INFO.is_file() else ""
