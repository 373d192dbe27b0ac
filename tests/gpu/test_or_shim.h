#pragma once

// GoogleTest; or, on a machine with nothing but compilers, the part of it that
// kernel_test.cc needs.

#if __has_include(<gtest/gtest.h>) && !defined(NEREUS_NO_GTEST)
#include <gtest/gtest.h>
#else

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace testing {

struct Registered {
  std::string name;
  void (*run)();
};
inline std::vector<Registered>& AllTests() {
  static std::vector<Registered> tests;
  return tests;
}
inline bool Register(std::string name, void (*run)()) {
  AllTests().push_back({std::move(name), run});
  return true;
}

class Test {
 public:
  virtual ~Test() = default;
  virtual void SetUp() {}
  virtual void TestBody() = 0;
};

inline bool failed = false;
inline std::string skipped;  // Reason to skip the running test.

// Message of a failure or of a skip; it is written by the destructor.
class Message {
 public:
  explicit Message(std::string* skip = nullptr) : skip_(skip) {}
  ~Message() {
    if (skip_ != nullptr) {
      *skip_ = text_.str() + " ";
    } else {
      failed = true;
      std::cout << text_.str() << "\n";
    }
  }
  template <typename T>
  Message& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 private:
  std::string* skip_;
  std::ostringstream text_;
};
// Turns a macro's message into a void expression.
struct Voidify {
  void operator=(const Message&) const {}
};

template <typename T>
void RunTest() {
  T test;
  test.SetUp();
  if (skipped.empty()) test.TestBody();
}

}  // namespace testing

#define TEST_F(suite, name)                                            \
  struct suite##_##name : suite {                                      \
    void TestBody() override;                                          \
  };                                                                   \
  static const bool suite##_##name##_registered = ::testing::Register( \
      #suite "." #name, &::testing::RunTest<suite##_##name>);          \
  void suite##_##name::TestBody()

#define NEREUS_SHIM_CHECK(condition, text)                            \
  (condition) ? (void)0                                               \
              : ::testing::Voidify() = ::testing::Message()           \
                                       << __FILE__ << ":" << __LINE__ \
                                       << ": " text " "
#define EXPECT_TRUE(a) NEREUS_SHIM_CHECK(a, #a)
#define EXPECT_FALSE(a) NEREUS_SHIM_CHECK(!(a), "not " #a)
#define EXPECT_EQ(a, b) NEREUS_SHIM_CHECK((a) == (b), #a " == " #b)
#define EXPECT_LE(a, b) NEREUS_SHIM_CHECK((a) <= (b), #a " <= " #b)
#define ASSERT_EQ(a, b)                                        \
  if (!((a) == (b)))                                           \
  return ::testing::Voidify() = ::testing::Message()           \
                                << __FILE__ << ":" << __LINE__ \
                                << ": " #a " == " #b " "
#define GTEST_SKIP() \
  return ::testing::Voidify() = ::testing::Message(&::testing::skipped)

int main() {
  int failures = 0;
  for (const auto& test : ::testing::AllTests()) {
    ::testing::failed = false;
    ::testing::skipped.clear();
    test.run();
    failures += ::testing::failed;
    const bool skips = !::testing::skipped.empty();
    std::cout << (::testing::failed ? "[  FAILED  ] "
                  : skips           ? "[  SKIPPED ] "
                                    : "[       OK ] ")
              << test.name << (skips ? ": " + ::testing::skipped : "")
              << std::endl;
  }
  return failures == 0 ? 0 : 1;
}

#endif
