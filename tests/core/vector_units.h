// SPDX-License-Identifier: Apache-2.0
// The vector units of this machine, for tests that all give the same bits.
#ifndef HVD_TESTS_CORE_VECTOR_UNITS_H_
#define HVD_TESTS_CORE_VECTOR_UNITS_H_

#include <vector>

#include "cpu/vector_unit.h"

namespace hvd {

// The baseline comes first.
inline std::vector<VectorUnit> VectorUnitsHere() {
  std::vector<VectorUnit> units;
  for (VectorUnit unit :
       {VectorUnit::kBaseline, VectorUnit::kAvx2, VectorUnit::kAvx512}) {
    if (unit <= BestVectorUnit()) units.push_back(unit);
  }
  return units;
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_VECTOR_UNITS_H_
