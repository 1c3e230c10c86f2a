# SPDX-License-Identifier: Apache-2.0
"""The values of `op` of a reduction. They are those of C++."""

from __future__ import annotations

from hvd_tf._internal import native

Average: int = native.lib.hvd_reduce_op(b"Average")
"""op of a reduction: the mean over the ranks."""
Sum: int = native.lib.hvd_reduce_op(b"Sum")
"""op of a reduction: the sum over the ranks."""
Adasum: int = native.lib.hvd_reduce_op(b"Adasum")
"""op of an allreduce of floating point: a sum that counts once what the ranks have in common.

Two ranks' tensors a and b give `(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b`: their sum if they are
orthogonal, and their mean if they are equal. More ranks are combined as a binary tree, neighbours
first. The learning rate need not grow with the number of ranks.
"""
Min: int = native.lib.hvd_reduce_op(b"Min")
"""op of a reduction: each element's least value."""
Max: int = native.lib.hvd_reduce_op(b"Max")
"""op of a reduction: each element's greatest value."""
Product: int = native.lib.hvd_reduce_op(b"Product")
"""op of a reduction: each element's product over the ranks."""
