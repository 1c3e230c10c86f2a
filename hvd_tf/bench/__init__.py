# SPDX-License-Identifier: Apache-2.0
"""hvd-bench: times every verb on this machine, beside plain copies, plain MPI and other libraries.

`options` reads the command line. `cases` says what is measured. `session` runs the `jobs`, whose
ranks run `worker`. `results` makes numbers of their times. `report` and `plot` show them.
"""
