#include "server/admin/patient_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <ostream>
#include <string>

namespace nereus {
namespace {

class PatientOutputTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    reader_ = ends[0];
    writer_ = ends[1];
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, nullptr), 0);
  }

  void TearDown() override {
    signal(SIGINT, SIG_IGN);  // Drops a pending signal.
    signal(SIGINT, SIG_DFL);
    close(reader_);
    close(writer_);
  }

  int reader_ = -1;
  int writer_ = -1;
};

TEST_F(PatientOutputTest, BytesAppearAtOnceAndInOrder) {
  PatientOutput buffer(writer_);
  std::ostream stream(&buffer);
  // More than PIPE_BUF, and less than a pipe holds.
  const std::string text(20000, 'x');
  stream << text << 'y' << "z";
  EXPECT_TRUE(stream.good());
  std::string read_back(text.size() + 10, '\0');
  read_back.resize(read(reader_, read_back.data(), read_back.size()));
  EXPECT_EQ(read_back, text + "yz");
}

// More than a pipe holds. Without the signal, the write would wait for ever.
TEST_F(PatientOutputTest, SignalEndsTheWaitForAReader) {
  PatientOutput buffer(writer_);
  std::ostream stream(&buffer);
  ASSERT_EQ(raise(SIGINT), 0);
  stream << std::string(10'000'000, 'x');
  EXPECT_FALSE(stream.good());
  sigset_t pending;
  ASSERT_EQ(sigpending(&pending), 0);
  EXPECT_TRUE(sigismember(&pending, SIGINT));
}

TEST_F(PatientOutputTest, SignalLosesNothingWhileTheReaderReads) {
  PatientOutput buffer(writer_);
  std::ostream stream(&buffer);
  ASSERT_EQ(raise(SIGINT), 0);
  stream << "last words";
  EXPECT_TRUE(stream.good());
}

TEST_F(PatientOutputTest, ReaderThatIsGoneIsAnError) {
  signal(SIGPIPE, SIG_IGN);
  close(reader_);
  reader_ = -1;
  PatientOutput buffer(writer_);
  std::ostream stream(&buffer);
  stream << "x";
  EXPECT_FALSE(stream.good());
  signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace nereus
