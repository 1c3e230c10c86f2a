// SPDX-License-Identifier: Apache-2.0
// A test harness in one header: TEST, EXPECT_*, ASSERT_* and main().
//
// Tests run ranks as threads, so expectations may be checked on any thread. An
// ASSERT leaves the function it stands in, as `return;`. Arguments filter: only
// tests whose name contains one of them run. The last line is "N passed, N
// failed". The exit status is 0 when some test ran and none failed.
#ifndef HVD_TESTS_CORE_HARNESS_H_
#define HVD_TESTS_CORE_HARNESS_H_

#include <atomic>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hvd::test {

// Sanitizers make a step cost 5 to 20 times as much. So tests that repeat a
// thing do it less often then.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif
constexpr int Times(int times, int if_sanitized) {
  return kIsSanitized ? if_sanitized : times;
}

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, void (*body)()) {
    Tests().push_back({name, body});
  }
};

// Failures of the test that runs now.
inline std::atomic<int> failures{0};

inline bool Expect(bool holds, const char* file, int line,
                   const std::string& text) {
  static std::mutex mutex;  // keeps the lines of ranks apart
  if (holds) return true;
  std::lock_guard<std::mutex> lock(mutex);
  failures.fetch_add(1);
  std::printf("%s:%d: expected %s\n", file, line, text.c_str());
  std::fflush(stdout);
  return false;
}

// The same, without making a text of what holds. Loops over elements do that.
inline bool Expect(bool holds, const char* file, int line, const char* text) {
  return holds || Expect(false, file, line, std::string(text));
}

template <typename T, typename = void>
struct IsPrintable : std::false_type {};
template <typename T>
using Printed =
    decltype(std::declval<std::ostream&>() << std::declval<const T&>());
template <typename T>
struct IsPrintable<T, std::void_t<Printed<T>>> : std::true_type {};

template <typename T>
std::string Show(const T& value) {
  std::ostringstream out;
  out.precision(17);
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else if constexpr (IsPrintable<T>::value) {
    out << value;
  } else {
    out << "something that cannot be printed";
  }
  return out.str();
}

// As with literals in a plain comparison: size() == 3 is no mistake.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
template <typename A, typename B>
bool ExpectEqual(const A& a, const B& b, bool equal, const char* file, int line,
                 const char* text) {
  if (static_cast<bool>(a == b) == equal) return true;
  return Expect(false, file, line,
                std::string(text) + ": " + Show(a) + " and " + Show(b));
}
#pragma GCC diagnostic pop

// Written so that a NaN fails.
inline bool ExpectNear(double a, double b, double tolerance, const char* file,
                       int line, const char* text) {
  if (a == b || std::abs(a - b) <= tolerance) return true;
  return Expect(false, file, line,
                std::string(text) + ": " + Show(a) + " and " + Show(b));
}

inline int RunTests(const std::vector<std::string>& wanted) {
  int passed = 0, failed = 0;
  for (const Test& test : Tests()) {
    bool runs = wanted.empty();
    for (const std::string& part : wanted) {
      runs |= std::string(test.name).find(part) != std::string::npos;
    }
    if (!runs) continue;
    failures = 0;
    test.body();
    const bool ok = failures == 0;
    ++(ok ? passed : failed);
    std::printf("%s %s\n", ok ? "ok  " : "FAIL", test.name);
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace hvd::test

// Weak, so that several files of one program may include this.
__attribute__((weak)) int main(int argc, char** argv) {
  return hvd::test::RunTests({argv + 1, argv + argc});
}

#define TEST(name)                                                           \
  static void Test_##name();                                                 \
  static ::hvd::test::Registration registration_##name(#name, &Test_##name); \
  static void Test_##name()

#define HVD_HERE __FILE__, __LINE__
#define EXPECT_TRUE(a) ::hvd::test::Expect(static_cast<bool>(a), HVD_HERE, #a)
#define EXPECT_FALSE(a) \
  ::hvd::test::Expect(!static_cast<bool>(a), HVD_HERE, "not " #a)
#define EXPECT_EQ(a, b) \
  ::hvd::test::ExpectEqual(a, b, true, HVD_HERE, #a " == " #b)
#define EXPECT_NE(a, b) \
  ::hvd::test::ExpectEqual(a, b, false, HVD_HERE, #a " != " #b)
#define EXPECT_NEAR(a, b, tolerance) \
  ::hvd::test::ExpectNear(a, b, tolerance, HVD_HERE, #a " near " #b)

#define HVD_OR_RETURN(expectation) \
  do {                             \
    if (!(expectation)) return;    \
  } while (false)
#define ASSERT_TRUE(a) HVD_OR_RETURN(EXPECT_TRUE(a))
#define ASSERT_FALSE(a) HVD_OR_RETURN(EXPECT_FALSE(a))
#define ASSERT_EQ(a, b) HVD_OR_RETURN(EXPECT_EQ(a, b))
#define ASSERT_NE(a, b) HVD_OR_RETURN(EXPECT_NE(a, b))
#define ASSERT_NEAR(a, b, tolerance) HVD_OR_RETURN(EXPECT_NEAR(a, b, tolerance))

#endif  // HVD_TESTS_CORE_HARNESS_H_
