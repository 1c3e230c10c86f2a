// SPDX-License-Identifier: Apache-2.0
// Finds a verb's rules, and has what rules of several verbs share.
#include "core/verbs/verb_rules.h"

#include <algorithm>
#include <charconv>

namespace hvd {
namespace {

std::string NumberText(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

std::string ShapesText(const Signature& signature, bool skip_first_dim) {
  std::string text;
  for (const Shape& shape : signature.shapes) {
    if (!text.empty()) text += ' ';
    if (skip_first_dim && !shape.empty()) {
      const std::string rest = ToString(Shape(shape.begin() + 1, shape.end()));
      text += shape.size() == 1 ? "[?]" : "[?," + rest.substr(1);
    } else {
      text += ToString(shape);
    }
  }
  return text;
}

// Whether the shapes are equal but for dimension 0. Both must have that.
bool SameButFirstDim(const Shape& a, const Shape& b) {
  return a.size() == b.size() && !a.empty() &&
         std::equal(a.begin() + 1, a.end(), b.begin() + 1);
}

}  // namespace

const VerbRules& RulesOf(Verb verb) {
  switch (verb) {
#define HVD_RULES_CASE(verb, number, text) \
  case Verb::k##verb:                      \
    return verb##Rules();
    HVD_FOR_EACH_VERB(HVD_RULES_CASE)
#undef HVD_RULES_CASE
  }
  return AllreduceRules();  // decoding refuses other numbers
}

bool SameButFirstDims(const Signature& a, const Signature& b) {
  if (a.verb != b.verb || !RulesOf(a.verb).first_dim_varies) return a == b;
  return a.dtype == b.dtype && a.memory == b.memory && ReduceAlike(a, b) &&
         a.id_dtype == b.id_dtype && a.sparse_algo == b.sparse_algo &&
         a.table_rows == b.table_rows &&
         std::equal(a.shapes.begin(), a.shapes.end(), b.shapes.begin(),
                    b.shapes.end(), SameButFirstDim);
}

void AppendFirstDims(const Signature& signature, Shape* dims) {
  for (const Shape& shape : signature.shapes) {
    dims->push_back(shape.empty() ? 0 : shape[0]);
  }
}

Shape FirstDims(const Signature& signature) {
  Shape dims;
  dims.reserve(signature.shapes.size());
  AppendFirstDims(signature, &dims);
  return dims;
}

int64_t RowCount(const Shape& shape) {
  int64_t count = 1;
  for (size_t i = 1; i < shape.size(); ++i) count *= shape[i];
  return count;
}

int64_t FusionBytes(const Signature& signature,
                    const std::vector<std::vector<int64_t>>& first_dims,
                    int size) {
  int64_t count = 0;
  for (size_t i = 0; i < signature.shapes.size(); ++i) {
    const Shape& shape = signature.shapes[i];
    if (first_dims.empty()) {
      count += CountOf(shape);
      continue;
    }
    const int64_t row = RowCount(shape);
    for (int64_t rows : first_dims[i]) count += rows * row;
  }
  // Where the log does not know the ranks' rows, each rank is taken to have as
  // many as this one.
  const bool gathers = RulesOf(signature.verb).tells_sizes_in_log;
  if (gathers && first_dims.empty()) count *= size;
  return count * static_cast<int64_t>(SizeOf(signature.dtype));
}

Property ShapeProperty() {
  return {"shape", "Pass the same shape on every rank.",
          [](const Signature& s, const std::vector<int>&) {
            return ShapesText(s, false);
          }};
}

Property RowShapeProperty() {
  return {"shape behind the first dimension",
          "Only the first dimension may differ between ranks.",
          [](const Signature& s, const std::vector<int>&) {
            return ShapesText(s, true);
          }};
}

std::vector<Property> ReductionProperties() {
  return {
      {"reduce op", "Pass the same op= on every rank.",
       [](const Signature& s, const std::vector<int>&) {
         return std::string(Name(s.reduce_op));
       }},
      {"prescale_factor", "Pass the same prescale_factor= on every rank.",
       [](const Signature& s, const std::vector<int>&) {
         return NumberText(s.prescale);
       }},
      {"postscale_factor", "Pass the same postscale_factor= on every rank.",
       [](const Signature& s, const std::vector<int>&) {
         return NumberText(s.postscale);
       }},
      {"compression", "Pass the same compression= on every rank.",
       [](const Signature& s, const std::vector<int>&) {
         return s.wire_dtype == s.dtype ? std::string("none")
                                        : std::string(Name(s.wire_dtype));
       }},
  };
}

bool ReduceAlike(const Signature& a, const Signature& b) {
  return a.dtype == b.dtype && a.wire_dtype == b.wire_dtype &&
         a.reduce_op == b.reduce_op && a.prescale == b.prescale &&
         a.postscale == b.postscale;
}

}  // namespace hvd
