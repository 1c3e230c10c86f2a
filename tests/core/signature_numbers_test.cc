// SPDX-License-Identifier: Apache-2.0
// SignatureNumbers: who gets a number, who loses it, and for how long it
// counts.
#include "core/control/signature_numbers.h"

#include <string>

#include "harness.h"

namespace hvd {
namespace {

Agreed Tensor(const std::string& name, int64_t length = 4,
              SignatureNumber number = 0) {
  Signature signature;
  signature.shapes = {{length}};
  Agreed agreed;
  agreed.key.name = name;
  agreed.signature_number = number;
  agreed.signature = std::make_shared<Signature>(signature);
  return agreed;
}

// The one tensor of a batch of it.
AgreedTensor Made(SignatureNumbers* numbers, Agreed agreed, uint64_t record) {
  std::vector<Agreed> tensors;
  tensors.push_back(std::move(agreed));
  return numbers->MakeBatch(std::move(tensors), record).tensors.at(0);
}

TEST(signature_numbers_name_a_tensor_once) {
  SignatureNumbers numbers(10);
  AgreedTensor tensor = Made(&numbers, Tensor("x"), 1);
  EXPECT_EQ(tensor.signature_number, 1u);
  EXPECT_EQ(tensor.key.name, "x");
  tensor = Made(&numbers, Tensor("x"), 2);
  EXPECT_EQ(tensor.signature_number, 1u);
  EXPECT_EQ(tensor.key.name, "");  // all members know it
  EXPECT_EQ(numbers.NumberOf("x"), 1u);
  EXPECT_EQ(numbers.Recall(1)->key.name, "x");
}

TEST(signature_numbers_replace_a_signature_and_remember_it_for_late_reports) {
  SignatureNumbers numbers(10);
  Made(&numbers, Tensor("x", 4), 1);
  const AgreedTensor tensor = Made(&numbers, Tensor("x", 5, 1), 2);
  EXPECT_EQ(tensor.signature_number, 2u);
  EXPECT_EQ(tensor.key.name, "x");
  EXPECT_TRUE((numbers.Recall(1)->signature->shapes[0] == Shape{4}));
  EXPECT_TRUE((numbers.Recall(2)->signature->shapes[0] == Shape{5}));
  numbers.ForgetRetired(1);
  EXPECT_EQ(numbers.retired_count(), 1u);
  numbers.ForgetRetired(2);
  EXPECT_EQ(numbers.retired_count(), 0u);
  EXPECT_TRUE(numbers.Recall(1) == nullptr);
}

TEST(signature_numbers_give_one_number_to_a_name_in_a_batch) {
  SignatureNumbers numbers(10);
  Made(&numbers, Tensor("x", 4), 1);
  std::vector<Agreed> tensors;
  for (uint64_t instance = 1; instance <= 2; ++instance) {
    tensors.push_back(Tensor("x", instance == 1 ? 5 : 4));
    tensors.back().key.instance = instance;
  }
  const AgreedBatch batch = numbers.MakeBatch(std::move(tensors), 2);
  EXPECT_EQ(batch.tensors[0].signature_number, 2u);
  // The members have forgotten number 1 by then.
  EXPECT_EQ(batch.tensors[1].signature_number, 0u);
  EXPECT_EQ(batch.tensors[1].key.name, "x");
  EXPECT_EQ(numbers.NumberOf("x"), 2u);
}

TEST(signature_numbers_evict_those_unused_for_longest) {
  SignatureNumbers numbers(2);
  Made(&numbers, Tensor("x"), 1);
  Made(&numbers, Tensor("y"), 2);
  EXPECT_FALSE(numbers.has_too_many());
  std::vector<Agreed> tensors;
  tensors.push_back(Tensor("z"));
  tensors.push_back(Tensor("x"));
  numbers.MakeBatch(std::move(tensors), 3);
  EXPECT_TRUE(numbers.has_too_many());
  EXPECT_TRUE((numbers.Evict(4).numbers == std::vector<SignatureNumber>{2}));
  EXPECT_FALSE(numbers.has_too_many());
  EXPECT_EQ(numbers.NumberOf("y"), 0u);
  EXPECT_EQ(numbers.Recall(2)->key.name, "y");
  numbers.ForgetRetired(4);
  EXPECT_TRUE(numbers.Recall(2) == nullptr);
  // A new number counts as used after all others of its batch.
  Made(&numbers, Tensor("w"), 5);
  EXPECT_TRUE((numbers.Evict(6).numbers == std::vector<SignatureNumber>{1}));
}

TEST(signature_numbers_may_be_switched_off) {
  SignatureNumbers numbers(0);
  EXPECT_EQ(Made(&numbers, Tensor("x"), 1).signature_number, 0u);
  EXPECT_EQ(Made(&numbers, Tensor("x"), 2).key.name, "x");
  EXPECT_FALSE(numbers.has_too_many());
}

}  // namespace
}  // namespace hvd
