# SPDX-License-Identifier: Apache-2.0
"""What hvd-bench runs as each rank, by path and with any Python. Nothing here imports hvd_tf."""
