// SPDX-License-Identifier: Apache-2.0
// Shapes that several ops have.
#include "adapter/op_definitions.h"

namespace hvd {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

TfStatus SameShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

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

TfStatus SparseShapes(InferenceContext* c) {
  const int tensors = c->num_outputs() / 2;
  for (int i = 0; i < tensors; ++i) {
    ShapeHandle rows = c->UnknownShape();
    if (c->RankKnown(c->input(i)) && c->Rank(c->input(i)) > 0) {
      TF_RETURN_IF_ERROR(c->ReplaceDim(c->input(i), 0, c->UnknownDim(), &rows));
    }
    c->set_output(i, rows);
    c->set_output(tensors + i, c->Vector(c->UnknownDim()));
  }
  return absl::OkStatus();
}

}  // namespace hvd
