# SPDX-License-Identifier: Apache-2.0
"""The parts of hvdrun: what mpirun is told, the job's processes, their output."""
