// SPDX-License-Identifier: Apache-2.0
// Writer and Reader: values to bytes and back, in little-endian order.
#ifndef HVD_CORE_CODING_H_
#define HVD_CORE_CODING_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

namespace hvd {

class Writer {
 public:
  void Byte(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void Bool(bool value) { Byte(value ? 1 : 0); }
  // Has seven bits in each byte, so that small numbers are short.
  void Unsigned(uint64_t value) {
    while (value >= 0x80) {
      Byte(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    Byte(static_cast<uint8_t>(value));
  }
  // Zigzag encoding, so that small negative numbers are short too.
  void Signed(int64_t value) {
    Unsigned((static_cast<uint64_t>(value) << 1) ^
             static_cast<uint64_t>(value >> 63));
  }
  void Double(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    for (int i = 0; i < 8; ++i) Byte(static_cast<uint8_t>(bits >> (8 * i)));
  }
  void Text(const std::string& value) {
    Unsigned(value.size());
    bytes_ += value;
  }
  // Appends what another Writer has made.
  void Raw(const std::string& bytes) { bytes_ += bytes; }
  size_t size() const { return bytes_.size(); }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// A read past the end, or of a malformed value, makes `ok` false for good. From
// then on every read returns zero.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return position_ == bytes_.size(); }

  uint8_t Byte() {
    if (!ok_ || position_ >= bytes_.size()) {
      ok_ = false;
      return 0;
    }
    return static_cast<uint8_t>(bytes_[position_++]);
  }
  uint64_t Unsigned() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte = Byte();
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    ok_ = false;
    return 0;
  }
  // Other bytes than 0 and 1 are malformed.
  bool Bool() {
    const uint8_t value = Byte();
    if (value > 1) ok_ = false;
    return ok_ && value == 1;
  }
  // An Unsigned that fits into a non-negative int.
  int Int() {
    const uint64_t value = Unsigned();
    if (value <= static_cast<uint64_t>(std::numeric_limits<int>::max())) {
      return static_cast<int>(value);
    }
    ok_ = false;
    return 0;
  }
  int64_t Signed() {
    uint64_t value = Unsigned();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  double Double() {
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i)
      bits |= static_cast<uint64_t>(Byte()) << (8 * i);
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  std::string Text() {
    uint64_t size = Unsigned();
    if (!ok_ || size > bytes_.size() - position_) {
      ok_ = false;
      return {};
    }
    std::string text = bytes_.substr(position_, size);
    position_ += size;
    return text;
  }
  // A count of things that take at least a byte each. More than the bytes that
  // are left is malformed, so a bad length cannot make the caller allocate.
  size_t Count() {
    uint64_t count = Unsigned();
    if (!ok_ || count > bytes_.size() - position_) {
      ok_ = false;
      return 0;
    }
    return static_cast<size_t>(count);
  }
  // An enumerator below `end`.
  template <typename E>
  E Enum(uint8_t end) {
    uint8_t value = Byte();
    if (value >= end) ok_ = false;
    return ok_ ? static_cast<E>(value) : E{};
  }
  void Fail() { ok_ = false; }

 private:
  const std::string& bytes_;
  size_t position_ = 0;
  bool ok_ = true;
};

}  // namespace hvd

#endif  // HVD_CORE_CODING_H_
