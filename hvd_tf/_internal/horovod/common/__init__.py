# SPDX-License-Identifier: Apache-2.0
"""`horovod.common`: what all of its frameworks share."""
