# SPDX-License-Identifier: Apache-2.0
"""Reads timelines: `python -m hvd_tf.timeline report FILE`. docs/timeline.md has an example."""
