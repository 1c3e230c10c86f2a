// SPDX-License-Identifier: Apache-2.0
// Quoted: names that users may choose, in texts.
#include "core/quoted.h"

#include <string>

#include "harness.h"

namespace hvd {
namespace {

TEST(quoted_leaves_usual_names_as_they_are) {
  EXPECT_EQ(Quoted("scope/w:0 and 2 more@1"), "'scope/w:0 and 2 more@1'");
  EXPECT_EQ(Quoted("gr\xc3\xbc\xc3\x9f"), "'gr\xc3\xbc\xc3\x9f'");
  EXPECT_EQ(Quoted(""), "''");
  const std::string longest(300, 'x');
  EXPECT_EQ(Quoted(longest), "'" + longest + "'");
}

TEST(quoted_shows_control_characters) {
  EXPECT_EQ(Quoted(std::string("a\0b\n\x1f\x7f", 6)),
            "'a\\x00b\\x0a\\x1f\\x7f'");
}

TEST(quoted_shows_both_ends_of_a_long_name) {
  const std::string half(150, 'x');
  EXPECT_EQ(Quoted(half + "yy" + half), "'" + half + "..." + half + "'");
  // No character is cut in two.
  const std::string end(149, 'x');
  EXPECT_EQ(Quoted(end + "\xc3\xbcyyyy\xc3\xbc" + end),
            "'" + end + "..." + end + "'");
}

}  // namespace
}  // namespace hvd
