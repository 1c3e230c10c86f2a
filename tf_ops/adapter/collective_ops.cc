// SPDX-License-Identifier: Apache-2.0
// The TensorFlow ops: their inputs, outputs and shapes.
//
// Data verbs are stateless. TensorFlow runs the stateful ops of a tf.function
// one after another. That would serialise collectives and prevent their fusion.
#include "adapter/tf_compat.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// Each output has the shape of its input.
TfStatus SameShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

// Each output has the shape of its input but for an unknown first dimension.
// A scalar is left to the kernel, which makes it an error on every rank.
TfStatus UnknownFirstDimensions(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) {
    ShapeHandle output = c->UnknownShape();
    if (c->RankKnown(c->input(i)) && c->Rank(c->input(i)) > 0) {
      TF_RETURN_IF_ERROR(
          c->ReplaceDim(c->input(i), 0, c->UnknownDim(), &output));
    }
    c->set_output(i, output);
  }
  return absl::OkStatus();
}

#define HVD_REDUCIBLE_TYPES \
  "{uint8, int8, int32, int64, half, bfloat16, float, double}"
#define HVD_ALL_TYPES                                                  \
  "{uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, " \
  "double, bool}"

#define HVD_COMMON_DOC                                                   \
  "\ntensor_name: The name that ranks match each other's calls by; the " \
  "node's name when empty."                                              \
  "\nprocess_set_id: The ranks that take part; 0 is all of them."
#define HVD_REDUCE_DOC                                                      \
  "\nreduce_op: A ReduceOp: Average, Sum, Min, Max or Product."             \
  "\nprescale_factor: Each input is multiplied by it; decimal text, which " \
  "keeps float64's precision."                                              \
  "\npostscale_factor: The reduced value is multiplied by it; as above."    \
  "\nwire_dtype: What a floating-point tensor is cast to on the wire."

REGISTER_OP("HorovodAllreduce")
    .Attr("T: " HVD_REDUCIBLE_TYPES)
    .Attr("reduce_op: int")
    .Attr("prescale_factor: string = '1'")
    .Attr("postscale_factor: string = '1'")
    .Attr("wire_dtype: {'none', 'fp16', 'bf16'} = 'none'")
    .Attr("tensor_name: string = ''")
    .Attr("process_set_id: int = 0")
    .Input("tensor: T")
    .Output("sum: T")
    .SetShapeFn(SameShapes)
    .Doc(
        "Reduces a tensor over the ranks of a process set."
        "\n\ntensor: The same shape and dtype on every rank."
        "\nsum: The reduced tensor, the same on every rank." HVD_REDUCE_DOC
            HVD_COMMON_DOC);

REGISTER_OP("HorovodGroupedAllreduce")
    .Attr("T: " HVD_REDUCIBLE_TYPES)
    .Attr("num_tensors: int >= 1")
    .Attr("reduce_op: int")
    .Attr("prescale_factor: string = '1'")
    .Attr("postscale_factor: string = '1'")
    .Attr("wire_dtype: {'none', 'fp16', 'bf16'} = 'none'")
    .Attr("tensor_name: string = ''")
    .Attr("process_set_id: int = 0")
    .Input("tensors: num_tensors * T")
    .Output("sums: num_tensors * T")
    .SetShapeFn(SameShapes)
    .Doc(
        "Reduces several tensors, which are agreed on, travel and fail as one."
        "\n\ntensors: The same shapes and dtype on every rank."
        "\nsums: The reduced tensors, the same on every rank."
        "\nnum_tensors: How many." HVD_REDUCE_DOC HVD_COMMON_DOC);

REGISTER_OP("HorovodAllgather")
    .Attr("T: " HVD_ALL_TYPES)
    .Attr("tensor_name: string = ''")
    .Attr("process_set_id: int = 0")
    .Input("tensor: T")
    .Output("output: T")
    .SetShapeFn(UnknownFirstDimensions)
    .Doc(
        "Concatenates the ranks' tensors along the first dimension, in rank "
        "order."
        "\n\ntensor: The same on every rank but for values and first "
        "dimension."
        "\noutput: The concatenation, the same on every rank." HVD_COMMON_DOC);

REGISTER_OP("HorovodGroupedAllgather")
    .Attr("T: " HVD_ALL_TYPES)
    .Attr("num_tensors: int >= 1")
    .Attr("tensor_name: string = ''")
    .Attr("process_set_id: int = 0")
    .Input("tensors: num_tensors * T")
    .Output("outputs: num_tensors * T")
    .SetShapeFn(UnknownFirstDimensions)
    .Doc(
        "Gathers several tensors, which are agreed on, travel and fail as one."
        "\n\ntensors: As HorovodAllgather's."
        "\noutputs: One concatenation per tensor."
        "\nnum_tensors: How many." HVD_COMMON_DOC);

REGISTER_OP("HorovodBroadcast")
    .Attr("T: " HVD_ALL_TYPES)
    .Attr("root_rank: int")
    .Attr("tensor_name: string = ''")
    .Attr("process_set_id: int = 0")
    .Input("tensor: T")
    .Output("output: T")
    .SetShapeFn(SameShapes)
    .Doc(
        "Gives every rank the root's tensor."
        "\n\ntensor: The same shape and dtype on every rank."
        "\noutput: The root's values."
        "\nroot_rank: A rank of the job, within the process "
        "set." HVD_COMMON_DOC);

REGISTER_OP("HorovodBroadcastInplaceResource")
    .Attr("T: " HVD_ALL_TYPES)
    .Attr("num_variables: int >= 1")
    .Attr("root_rank: int")
    .Attr("tensor_name: string = ''")
    .Attr("process_set_id: int = 0")
    .Input("resources: num_variables * resource")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(
        "Gives variables the values that they have on the root."
        "\n\nresources: Initialised variables of dtype T, of the same shapes "
        "on every rank."
        "\nT: The variables' dtype."
        "\nnum_variables: How many."
        "\nroot_rank: A rank of the job, within the process "
        "set." HVD_COMMON_DOC);

REGISTER_OP("HorovodBroadcastInplace")
    .Attr("T: " HVD_ALL_TYPES)
    .Attr("num_variables: int >= 1")
    .Attr("root_rank: int")
    .Attr("tensor_name: string = ''")
    .Attr("process_set_id: int = 0")
    .Input("variables: Ref(num_variables * T)")
    .Output("outputs: Ref(num_variables * T)")
    .SetIsStateful()
    // So that the kernel sees an uninitialised variable, and the peers hear of
    // it.
    .SetAllowsUninitializedInput()
    .SetShapeFn(SameShapes)
    .Doc(
        "Gives reference variables the values that they have on the root."
        "\n\nvariables: Initialised, of the same shapes on every rank."
        "\noutputs: The same variables, after the broadcast."
        "\nnum_variables: How many."
        "\nroot_rank: A rank of the job, within the process "
        "set." HVD_COMMON_DOC);

REGISTER_OP("HorovodBroadcastVariables")
    .Attr("num_variables: int >= 1")
    .Attr("root_rank: int")
    .Attr("tensor_names: list(string)")
    .Attr("process_set_id: int = 0")
    .Input("resources: num_variables * resource")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(
        "Gives variables of any dtypes the values that they have on the root, "
        "each as a collective of its own."
        "\n\nresources: Initialised variables."
        "\nnum_variables: How many."
        "\nroot_rank: A rank of the job, within the process set."
        "\ntensor_names: One per variable: what the ranks match by."
        "\nprocess_set_id: The set; 0 is all ranks.");

// Rank and size are read when the graph runs, because a graph may outlive
// hvd.init.

REGISTER_OP("HorovodRank")
    .Output("rank: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("The rank of this process in the job.");

REGISTER_OP("HorovodLocalRank")
    .Output("local_rank: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("The rank of this process among those of its host.");

REGISTER_OP("HorovodLocalSize")
    .Output("local_size: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("The number of ranks on this host.");

REGISTER_OP("HorovodSize")
    .Attr("process_set_id: int = 0")
    .Output("size: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(
        "The number of ranks of a process set."
        "\n\nprocess_set_id: The set; 0 is all ranks.");

REGISTER_OP("HorovodProcessSetIncluded")
    .Attr("process_set_id: int = 0")
    .Output("included: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(
        "1 when this rank is a member of a process set, else 0; -1 when hvd is "
        "not initialised, -2 for an unknown set."
        "\n\nprocess_set_id: The set; 0 is all ranks.");

}  // namespace
}  // namespace hvd
