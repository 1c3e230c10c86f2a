// SPDX-License-Identifier: Apache-2.0
// A directory for a test, and the text of a file in it.
#ifndef HVD_TESTS_CORE_TEMP_DIRECTORY_H_
#define HVD_TESTS_CORE_TEMP_DIRECTORY_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace hvd {

// A directory that is gone at the end.
class TempDirectory {
 public:
  TempDirectory() {
    char path[] = "/tmp/hvd-test-XXXXXX";
    path_ = mkdtemp(path);
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_TEMP_DIRECTORY_H_
