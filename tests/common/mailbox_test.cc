#include "common/transport/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(MailboxTest, GivesAllInOrderAndOnce) {
  Mailbox<int> mailbox;
  for (int i = 1; i <= 3; ++i) mailbox.Push(i);
  EXPECT_THAT(mailbox.Take(absl::InfiniteDuration()), ElementsAre(1, 2, 3));
  EXPECT_THAT(mailbox.Take(absl::ZeroDuration()), IsEmpty());
}

TEST(MailboxTest, WakeEndsOneWaitAndIsNotLost) {
  Mailbox<int> mailbox;
  mailbox.Wake();
  mailbox.Wake();
  EXPECT_THAT(mailbox.Take(absl::InfiniteDuration()), IsEmpty());
  std::thread waker([&mailbox] { mailbox.Wake(); });
  EXPECT_THAT(mailbox.Take(absl::InfiniteDuration()), IsEmpty());
  waker.join();
}

TEST(MailboxTest, WaitsForAnotherThread) {
  Mailbox<std::unique_ptr<int>> mailbox;
  std::thread writer([&mailbox] { mailbox.Push(std::make_unique<int>(7)); });
  const auto taken = mailbox.Take(absl::InfiniteDuration());
  writer.join();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(*taken[0], 7);
}

TEST(MailboxTest, NegativeTimeoutDoesNotWait) {
  Mailbox<int> mailbox;
  EXPECT_THAT(mailbox.Take(-absl::InfiniteDuration()), IsEmpty());
}

}  // namespace
}  // namespace nereus
