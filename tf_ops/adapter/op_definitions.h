// SPDX-License-Identifier: Apache-2.0
// What the definitions of several TensorFlow ops share: types, shapes and
// texts.
//
// Data verbs are stateless. TensorFlow runs the stateful ops of a tf.function
// one after another. That would serialise collectives and prevent their fusion.
#ifndef HVD_ADAPTER_OP_DEFINITIONS_H_
#define HVD_ADAPTER_OP_DEFINITIONS_H_

#include "adapter/gpu_kernels.h"
#include "adapter/tf_compat.h"

namespace hvd {

// Each output has the shape of its input.
[[nodiscard]] TfStatus SameShapes(
    tensorflow::shape_inference::InferenceContext* c);

// Each output has the shape of its input but for an unknown first dimension.
// A scalar is left to the kernel, which makes it an error on every rank.
[[nodiscard]] TfStatus UnknownFirstDimensions(
    tensorflow::shape_inference::InferenceContext* c);

// Of sparse allreduces. Inputs are values, then indices, then dense shapes.
// Outputs are rows of unknown number like the values, then their indices.
[[nodiscard]] TfStatus SparseShapes(
    tensorflow::shape_inference::InferenceContext* c);

}  // namespace hvd

#define HVD_REDUCIBLE_TYPES \
  "{uint8, int8, int32, int64, half, bfloat16, float, double}"
#define HVD_ALL_TYPES                                                  \
  "{uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, " \
  "double, bool}"

// Defines an op of a collective, or of one that reduces, with the attributes
// that all of them have. A graph that a program has saved with Horovod has
// ignore_name_scope and the factors that are floats, which have 24 bits.
#define HVD_REGISTER_COLLECTIVE(op)            \
  REGISTER_OP(op)                              \
      .Attr("tensor_name: string = ''")        \
      .Attr("ignore_name_scope: bool = false") \
      .Attr("process_set_id: int = 0")
#define HVD_REGISTER_REDUCTION(op)           \
  HVD_REGISTER_COLLECTIVE(op)                \
      .Attr("reduce_op: int")                \
      .Attr("prescale_factor: float = 1.0")  \
      .Attr("postscale_factor: float = 1.0") \
      .Attr("exact_prescale: string = '1'")  \
      .Attr("exact_postscale: string = '1'") \
      .Attr("wire_dtype: {'none', 'fp16', 'bf16'} = 'none'")

#define HVD_COMMON_DOC                                                   \
  "\ntensor_name: The name that ranks match each other's calls by; the " \
  "node's name when empty."                                              \
  "\nignore_name_scope: Of Horovod's graphs. It has no effect."          \
  "\nprocess_set_id: The ranks that take part; 0 is all of them."
#define HVD_REDUCE_DOC                                                      \
  "\nreduce_op: A ReduceOp: Average, Sum, Adasum, Min, Max or Product."     \
  "\nprescale_factor: Each input is multiplied by it; of Horovod's graphs." \
  "\npostscale_factor: The reduced value is multiplied by it; as above."    \
  "\nexact_prescale: A further factor of each input; decimal text, which "  \
  "keeps float64's precision."                                              \
  "\nexact_postscale: A further factor of the reduced value; as above."     \
  "\nwire_dtype: What a floating-point tensor is cast to on the wire."

#define HVD_REGISTER_CPU_KERNEL(op, kernel) \
  REGISTER_KERNEL_BUILDER(Name(op).Device(::tensorflow::DEVICE_CPU), kernel)
// For work that touches no tensor of a GPU. In a graph that is placed on a GPU
// its output is in host memory there too.
#define HVD_REGISTER_HOST_KERNELS(op, kernel, output) \
  HVD_REGISTER_CPU_KERNEL(op, kernel);                \
  REGISTER_KERNEL_BUILDER(                            \
      Name(op).Device(::tensorflow::DEVICE_GPU).HostMemory(output), kernel)
// For CPUs and GPUs. Behind `kernel`: see HVD_ADD_GPU_KERNEL.
#define HVD_REGISTER_KERNELS(op, kernel, ...) \
  HVD_REGISTER_CPU_KERNEL(op, kernel);        \
  HVD_ADD_GPU_KERNEL(op, kernel, __VA_ARGS__)

#endif  // HVD_ADAPTER_OP_DEFINITIONS_H_
