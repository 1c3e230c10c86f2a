# SPDX-License-Identifier: Apache-2.0
"""The shapes of ResNet-50's gradients, from its architecture (He et al. 2015, table 1)."""

from __future__ import annotations

from collections.abc import Iterator

# The bottleneck blocks of each stage, and their inner channels. A block has four times as many
# output channels.
_BLOCKS = (3, 4, 6, 3)
_CHANNELS = (64, 128, 256, 512)
_EXPANSION = 4
_CLASSES = 1000


def gradient_shapes() -> list[tuple[int, ...]]:
    """161 shapes, 25,557,032 parameters: convolutions without bias, gamma and beta, the classes."""
    return list(_gradients())


def _gradients() -> Iterator[tuple[int, ...]]:
    yield from _convolution(7, 3, 64)
    arriving = 64
    for blocks, channels in zip(_BLOCKS, _CHANNELS):
        leaving = _EXPANSION * channels
        for block in range(blocks):
            yield from _convolution(1, arriving, channels)
            yield from _convolution(3, channels, channels)
            yield from _convolution(1, channels, leaving)
            if block == 0:
                # The shortcut changes the number of channels too.
                yield from _convolution(1, arriving, leaving)
            arriving = leaving
    yield (arriving, _CLASSES)
    yield (_CLASSES,)


def _convolution(width: int, arriving: int, leaving: int) -> Iterator[tuple[int, ...]]:
    yield (width, width, arriving, leaving)
    # The batch norm after it: gamma and beta.
    yield (leaving,)
    yield (leaving,)
