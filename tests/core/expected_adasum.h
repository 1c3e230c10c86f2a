// SPDX-License-Identifier: Apache-2.0
// What an Adasum must give, in float64, on whole vectors: no weights, no
// shards.
#ifndef HVD_TESTS_CORE_EXPECTED_ADASUM_H_
#define HVD_TESTS_CORE_EXPECTED_ADASUM_H_

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace hvd {

using Vector = std::vector<double>;

inline double Dot(const Vector& a, const Vector& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// A vector of the tree. `summands` is how long it would be if nothing had
// cancelled.
struct AdasumNode {
  Vector vector;
  double summands = 0.0;
};

inline AdasumNode Combined(const AdasumNode& a, const AdasumNode& b) {
  const double ab = Dot(a.vector, b.vector);
  const auto weight = [&](const AdasumNode& node) {
    const double square = Dot(node.vector, node.vector);
    // What is left is rounding.
    if (std::sqrt(square) <= std::ldexp(node.summands, -40)) return 1.0;
    return 1.0 - ab / (2.0 * square);
  };
  const double of_a = weight(a), of_b = weight(b);
  AdasumNode sum;
  for (size_t i = 0; i < a.vector.size(); ++i) {
    sum.vector.push_back(of_a * a.vector[i] + of_b * b.vector[i]);
  }
  sum.summands = std::abs(of_a) * a.summands + std::abs(of_b) * b.summands;
  return sum;
}

// The Adasum of the ranks' vectors, as they cross the wire. Neighbours are
// combined level by level, and one without a neighbour passes up.
inline Vector ExpectedAdasum(std::vector<Vector> vectors) {
  std::vector<AdasumNode> nodes;
  for (Vector& vector : vectors) {
    const double length = std::sqrt(Dot(vector, vector));
    nodes.push_back({std::move(vector), length});
  }
  while (nodes.size() > 1) {
    std::vector<AdasumNode> above;
    for (size_t i = 0; i + 1 < nodes.size(); i += 2) {
      above.push_back(Combined(nodes[i], nodes[i + 1]));
    }
    if (nodes.size() % 2 == 1) above.push_back(std::move(nodes.back()));
    nodes = std::move(above);
  }
  return std::move(nodes[0].vector);
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_EXPECTED_ADASUM_H_
