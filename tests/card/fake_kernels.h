// SPDX-License-Identifier: Apache-2.0
// Our kernels on a card that is made up: each thread's part by the same
// functions, one after the other.
#ifndef HVD_TESTS_CARD_FAKE_KERNELS_H_
#define HVD_TESTS_CARD_FAKE_KERNELS_H_

#include <functional>
#include <string>

#include "fake_card.h"

namespace hvd {

// Reads a launch's arguments, and returns the work of the stream.
using FakeKernel = std::function<FakeCard::Work(
    FakeCard* card, unsigned blocks, unsigned threads, void** arguments)>;

// That of card_kernels.cu with this name, or null.
const FakeKernel* FindFakeKernel(const std::string& name);

}  // namespace hvd

#endif  // HVD_TESTS_CARD_FAKE_KERNELS_H_
