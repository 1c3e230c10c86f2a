# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.compression`."""

from hvd_tf.compression import Compression as Compression
from hvd_tf.compression import Compressor as Compressor
from hvd_tf.compression import FP16Compressor as FP16Compressor
from hvd_tf.compression import NoneCompressor as NoneCompressor
