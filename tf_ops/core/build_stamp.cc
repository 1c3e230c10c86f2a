// SPDX-License-Identifier: Apache-2.0
// The stamp. CMake makes it of the sources.
#include "core/build_stamp.h"

namespace hvd {

const char* BuildStamp() { return HVD_BUILD_STAMP; }

}  // namespace hvd
