# SPDX-License-Identifier: Apache-2.0
"""How often a call is timed."""

WARM_UP_CALLS = 3
_FEWEST_CALLS, _MOST_CALLS = 5, 2000


def calls_within(seconds: float, call_s: float) -> int:
    """The number of calls that take about that long, if one takes call_s seconds."""
    return int(min(max(seconds / max(call_s, 1e-9), _FEWEST_CALLS), _MOST_CALLS))
