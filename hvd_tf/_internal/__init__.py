# SPDX-License-Identifier: Apache-2.0
"""What hvd_tf is made of. Nothing here is public: names and signatures may change at any time."""
