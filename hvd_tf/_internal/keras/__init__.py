# SPDX-License-Identifier: Apache-2.0
"""How optimizers of Keras 2 and Keras 3 become distributed."""
