# SPDX-License-Identifier: Apache-2.0
"""What the launcher has told this process: for a rank that has not initialised hvd yet."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Set by the launchers of Open MPI, PMIx and MPICH.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def size(environ: Mapping[str, str] = os.environ) -> int:
    """The number of ranks that a launcher has started. 1: there is no launcher."""
    return _number(environ, SIZE_VARIABLES, 1)


def rank(environ: Mapping[str, str] = os.environ) -> int:
    """The number that the launcher has given to this rank. -1: there is no launcher."""
    return _number(environ, RANK_VARIABLES, -1)


def _number(environ: Mapping[str, str], names: tuple[str, ...], otherwise: int) -> int:
    texts = (environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), otherwise)
