// The small parts of common/base, in this order: addresses, checksums, limits
// of descriptors, exit codes, names of processes, mutexes, tables of names,
// random numbers, signals, statuses, fields of JSON. Logs have files of their
// own.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/crc32c.h"
#include "common/base/descriptor_limit.h"
#include "common/base/exit_codes.h"
#include "common/base/identity.h"
#include "common/base/json_fields.h"
#include "common/base/mutex.h"
#include "common/base/names.h"
#include "common/base/random.h"
#include "common/base/signal_exit.h"
#include "common/base/status.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::EndsWith;
using testing::ExitedWithCode;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::SizeIs;
using testing::StartsWith;

TEST(AddressTest, Ipv6AddressGetsBracketsOnce) {
  EXPECT_EQ(JoinHostPort("10.0.0.1", 7000), "10.0.0.1:7000");
  EXPECT_EQ(JoinHostPort("node-3", 0), "node-3:0");
  EXPECT_EQ(JoinHostPort("::1", 7000), "[::1]:7000");
  EXPECT_EQ(JoinHostPort("[::1]", 7000), "[::1]:7000");
}

TEST(AddressTest, WildcardIsNoAddressForPeers) {
  EXPECT_TRUE(CheckHost("127.0.0.1").ok());
  EXPECT_TRUE(CheckHost("::1").ok());
  for (const char* host : {"", "0.0.0.0", "::", "[::]", "*"}) {
    EXPECT_EQ(CheckHost(host).code(), absl::StatusCode::kInvalidArgument)
        << host;
  }
  EXPECT_THAT(std::string(CheckHost("0.0.0.0").message()),
              testing::HasSubstr("host is 0.0.0.0, which peers cannot"));
}

TEST(AddressTest, PortHasSixteenBits) {
  EXPECT_TRUE(CheckPort("data_port", 0).ok());
  EXPECT_TRUE(CheckPort("data_port", 65535).ok());
  EXPECT_FALSE(CheckPort("data_port", -1).ok());
  EXPECT_EQ(CheckPort("data_port", 65536).message(),
            "data_port is 65536, must be in [0, 65535]");
}

// Test vectors of RFC 3720, appendix B.4, and the check value of CRC
// catalogues.
TEST(Crc32cTest, ChecksumsMatchKnownValues) {
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), '\0');
  const std::string descending(ascending.rbegin(), ascending.rend());
  const struct {
    const char* name;
    std::string bytes;
    uint32_t crc;
  } kCases[] = {
      {"nothing", "", 0x00000000},
      {"32 zeros", std::string(32, '\0'), 0x8a9136aa},
      {"32 ones", std::string(32, '\xff'), 0x62a8ab43},
      {"0 to 31", ascending, 0x46dd794e},
      {"31 to 0", descending, 0x113fdb5c},
      {"digits", "123456789", 0xe3069283},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(Crc32c(c.bytes.data(), c.bytes.size()), c.crc) << c.name;
  }
}

TEST(Crc32cTest, EmptyInputMayBeNull) {
  EXPECT_EQ(Crc32c(nullptr, 0), 0u);
  EXPECT_EQ(ExtendCrc32c(0xe3069283, nullptr, 0), 0xe3069283u);
}

TEST(Crc32cTest, PiecesExtendToTheWhole) {
  for (const uint64_t seed : TestSeeds(50)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    std::vector<uint8_t> bytes(random.Below(5000));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
    uint32_t crc = 0;
    for (size_t at = 0; at < bytes.size();) {
      const size_t piece = random.Below(bytes.size() - at + 1);
      crc = ExtendCrc32c(crc, bytes.data() + at, piece);
      at += piece;
    }
    EXPECT_EQ(crc, Crc32c(bytes.data(), bytes.size()));
  }
}

// Restores the process's descriptor limit after each test.
class DescriptorLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    if (before_.rlim_max <= kLow) GTEST_SKIP() << "the hard limit is too low";
  }
  void TearDown() override { ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  void SetLimit(rlim_t descriptors) {
    const rlimit limit = {descriptors, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  // Returns the highest limit that the system grants this process.
  int Most() const {
    return static_cast<int>(
        std::min<rlim_t>(before_.rlim_max, std::numeric_limits<int>::max()));
  }

  static constexpr rlim_t kLow = 77;
  rlimit before_ = {};
};

TEST_F(DescriptorLimitTest, LimitIsTheKernelsLimit) {
  for (const rlim_t limit : {kLow, kLow - 1}) {
    SetLimit(limit);
    EXPECT_EQ(DescriptorLimit(), static_cast<int>(limit));
  }
}

TEST_F(DescriptorLimitTest, LimitIsRaisedToTheSystemsMaximum) {
  SetLimit(kLow);
  RaiseDescriptorLimit();
  EXPECT_EQ(DescriptorLimit(), Most());
  // A second call changes nothing.
  RaiseDescriptorLimit();
  EXPECT_EQ(DescriptorLimit(), Most());
}

TEST(ExitCodesTest, CodeSaysWhoIsToBeStartedAgain) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), kExitDone);
  EXPECT_EQ(ExitCodeOf(OutOfRangeError("job a is finished")), kExitDone);
  EXPECT_EQ(ExitCodeOf(InternalError("?")), kExitFailed);
  EXPECT_EQ(ExitCodeOf(InvalidArgumentError("--port")), kExitUsage);
  EXPECT_EQ(ExitCodeOf(AbortedError("NaN")), kExitJobFailed);
  EXPECT_EQ(ExitCodeOf(FailedPreconditionError("model")), kExitRefused);
  EXPECT_EQ(ExitCodeOf(NotFoundError("job b")), kExitRefused);
  EXPECT_EQ(ExitCodeOf(DataLossError("shard 1")), kExitJobLost);
  for (const absl::Status& again :
       {UnavailableError("port"), AlreadyExistsError("name"),
        ResourceExhaustedError("workers"), CancelledError("dead"),
        DeadlineExceededError("late")}) {
    EXPECT_EQ(ExitCodeOf(again), kExitAgain) << again;
  }
}

TEST(IdentityTest, ProcessNameHoldsHostAndNumber) {
  EXPECT_THAT(ProcessName(), EndsWith(absl::StrCat(":", getpid())));
  EXPECT_EQ(ProcessName().find(':'), ProcessName().rfind(':'));
  EXPECT_NE(ProcessName().front(), ':');
  EXPECT_EQ(ProcessName(), ProcessName());
}

// This is the first name that the child process draws.
TEST(IdentityDeathTest, FirstNameIsTheProcessAndLaterNamesAreNumbered) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const bool as_said = UniqueName() == ProcessName() &&
                             UniqueName() == ProcessName() + ".2" &&
                             UniqueName() == ProcessName() + ".3";
        std::exit(as_said ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(IdentityTest, NamesOfAProcessDifferOnAllThreads) {
  constexpr int kThreads = 4;
  constexpr int kNames = 500;
  std::vector<std::vector<std::string>> names(kThreads);
  std::vector<std::thread> threads;
  for (std::vector<std::string>& own : names) {
    threads.emplace_back([&own] {
      for (int i = 0; i < kNames; ++i) own.push_back(UniqueName());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> all;
  for (const std::vector<std::string>& own : names) {
    for (const std::string& name : own) {
      EXPECT_THAT(name, StartsWith(ProcessName()));
      all.insert(name);
    }
  }
  EXPECT_THAT(all, SizeIs(kThreads * kNames));
}

TEST(IdentityTest, BootIdIsAUuidAndDoesNotChange) {
  EXPECT_THAT(BootId(), MatchesRegex("[0-9a-f-]{36}"));
  EXPECT_EQ(BootId(), BootId());
}

TEST(IdentityTest, NetworkNamespaceHasANumber) {
  EXPECT_NE(NetworkNamespace(), 0u);
  EXPECT_EQ(NetworkNamespace(), NetworkNamespace());
}

TEST(IdentityTest, DrawnNumbersDiffer) {
  std::set<uint64_t> drawn;
  for (int i = 0; i < 1000; ++i) drawn.insert(DrawUniqueId());
  EXPECT_THAT(drawn, SizeIs(1000));
}

TEST(MutexTest, AwaitWakesTheWaiterOfATrueCondition) {
  Mutex mu;
  bool waiting = false;
  bool first = false;
  bool over = false;
  std::thread waiter([&] {
    MutexLock lock(&mu);
    waiting = true;
    EXPECT_TRUE(mu.AwaitWithTimeout([&] { return first; }, absl::Minutes(1)));
    over = true;
  });
  {
    MutexLock lock(&mu);
    mu.Await([&] { return waiting; });
    first = true;
    // Await releases the mutex, so no Unlock is needed.
    EXPECT_TRUE(mu.AwaitWithTimeout([&] { return over; }, absl::Minutes(1)));
  }
  waiter.join();
}

TEST(MutexTest, TimeoutReturnsWhetherTheConditionHolds) {
  Mutex mu;
  MutexLock lock(&mu);
  EXPECT_FALSE(
      mu.AwaitWithTimeout([] { return false; }, absl::Milliseconds(1)));
  EXPECT_TRUE(mu.AwaitWithTimeout([] { return true; }, absl::ZeroDuration()));
  EXPECT_TRUE(
      mu.AwaitWithTimeout([] { return true; }, absl::InfiniteDuration()));
}

enum class Colour { kRed, kGreen, kBlue };
enum class Size : uint8_t { kSmall = 1, kLarge };

constexpr Named<Colour> kColours[] = {
    {Colour::kRed, "red"}, {Colour::kGreen, "green"}, {Colour::kBlue, "blue"}};
constexpr Named<Colour> kNoFirst[] = {{Colour::kGreen, "green"},
                                      {Colour::kBlue, "blue"}};
constexpr Named<Colour> kNoLast[] = {{Colour::kRed, "red"},
                                     {Colour::kGreen, "green"}};
constexpr Named<Colour> kNoMiddle[] = {{Colour::kRed, "red"},
                                       {Colour::kBlue, "blue"}};
constexpr Named<Size> kSizes[] = {{Size::kSmall, "small"},
                                  {Size::kLarge, "large"}};

TEST(NamesTest, TableIsCompleteWithEachEnumerator) {
  EXPECT_TRUE(IsComplete<kColours>());
  EXPECT_TRUE(IsComplete<kSizes>());
  EXPECT_FALSE(IsComplete<kNoFirst>());
  EXPECT_FALSE(IsComplete<kNoLast>());
  EXPECT_FALSE(IsComplete<kNoMiddle>());
}

TEST(NamesTest, NamesAreParsedBack) {
  for (const Named<Colour>& row : kColours) {
    EXPECT_EQ(NameOf<kColours>(row.value), row.name);
    EXPECT_EQ(*ParseName<kColours>("colour", row.name), row.value);
  }
}

TEST(NamesTest, NumberWithoutEnumeratorIsUnknown) {
  EXPECT_EQ(NameOf<kSizes>(static_cast<Size>(0)), "unknown");
  EXPECT_EQ(NameOf<kSizes>(static_cast<Size>(3)), "unknown");
}

TEST(NamesTest, UnknownNameIsRefusedWithTheKnownNames) {
  const absl::Status status = ParseName<kSizes>("size", "Small\n").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "unknown size \"Small\\n\", known are small, large");
}

TEST(NamesTest, LongNameIsCutInTheError) {
  const absl::Status status =
      ParseName<kSizes>("size", std::string(100, 'x')).status();
  EXPECT_THAT(std::string(status.message()),
              StartsWith("unknown size \"" + std::string(64, 'x') + "...\","));
  EXPECT_THAT(std::string(status.message()), EndsWith("small, large"));
}

// The first numbers of the reference implementation, splitmix64.c by Vigna.
TEST(RandomTest, NumbersAreThoseOfSplitMix64) {
  Random zero(0);
  EXPECT_EQ(zero.Next(), 0xe220a8397b1dcdaf);
  EXPECT_EQ(zero.Next(), 0x6e789e6aa1b965f4);
  EXPECT_EQ(zero.Next(), 0x06c45d188009454f);
  Random other(1234567);
  EXPECT_EQ(other.Next(), 6457827717110365317u);
  EXPECT_EQ(other.Next(), 3203168211198807973u);
  EXPECT_EQ(other.Next(), 9817491932198370423u);
}

TEST(RandomTest, BelowStaysBelowAndReachesEachValue) {
  Random random(3);
  std::vector<int> seen(7, 0);
  for (int i = 0; i < 7000; ++i) {
    const uint64_t value = random.Below(7);
    ASSERT_LT(value, 7u);
    ++seen[value];
  }
  // Each value is expected 1000 times. The deviation is sqrt(7000 * 1/7 * 6/7)
  // = 29; the bound is 6 deviations.
  for (int count : seen) EXPECT_NEAR(count, 1000, 180);
}

TEST(RandomTest, BelowTakesTheExtremeBounds) {
  Random random(4);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(random.Below(1), 0u);
    const uint64_t max = std::numeric_limits<uint64_t>::max();
    EXPECT_LT(random.Below(max), max);
  }
}

TEST(RandomTest, UniformIsAMultipleOf2ToTheMinus53In0To1) {
  Random random(5);
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = random.Uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    const double steps = value * 0x1.0p53;
    ASSERT_EQ(steps, std::floor(steps));
    sum += value;
  }
  // The mean of 10000 has a deviation of sqrt(1/12/10000) = 0.0029; the bound
  // is 6 deviations.
  EXPECT_NEAR(sum / 10000, 0.5, 0.018);
}

TEST(RandomTest, ChanceIsCertainAt0AndAt1) {
  Random random(6);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(random.Chance(0.0));
    EXPECT_TRUE(random.Chance(1.0));
  }
}

// Each statement runs in a process of its own.
class SignalExitTest : public testing::Test {
 public:
  SignalExitTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Sends this process a signal, and stays until another thread ends it.
void EndBy(int signal_number) {
  ExitOnSignals();
  raise(signal_number);
  for (;;) pause();
}

// Gives this process a standard error that takes no more bytes.
void FillStandardError() {
  int ends[2];
  if (pipe2(ends, O_NONBLOCK) != 0) abort();
  while (write(ends[1], "x", 1) == 1) {
  }
  fcntl(ends[1], F_SETFL, 0);
  dup2(ends[1], STDERR_FILENO);
}

TEST_F(SignalExitTest, TheLogEndsWithTheSignal) {
  EXPECT_EXIT(EndBy(SIGINT), ExitedWithCode(130),
              "INFO .nereus. SIGINT: ends at once\n$");
  EXPECT_EXIT(EndBy(SIGTERM), ExitedWithCode(143), "SIGTERM: ends at once\n$");
}

TEST_F(SignalExitTest, DoesNotWaitForAReaderOfTheLog) {
  EXPECT_EXIT(
      {
        FillStandardError();
        EndBy(SIGINT);
      },
      ExitedWithCode(130), "");
}

#ifndef __SANITIZE_THREAD__  // Which hands on no signal in a child of fork().

// Runs `child` in a child of fork(), and ends with its exit code.
template <typename Child>
void EndAsChildDoes(Child child) {
  ExitOnSignals();
  const pid_t process = fork();
  if (process == 0) child();
  int state = 0;
  waitpid(process, &state, 0);
  _exit(WIFEXITED(state) ? WEXITSTATUS(state) : 1);
}

TEST_F(SignalExitTest, AChildOfForkEndsWithoutTheThread) {
  EXPECT_EXIT(EndAsChildDoes([] {
                raise(SIGTERM);
                for (;;) pause();
              }),
              ExitedWithCode(143), "^$");
}

TEST_F(SignalExitTest, AChildOfForkMayPrepareAnew) {
  EXPECT_EXIT(EndAsChildDoes([] { EndBy(SIGTERM); }), ExitedWithCode(143),
              "SIGTERM: ends at once\n$");
}

#endif

TEST_F(SignalExitTest, EndsOnceHoweverManySignalsCome) {
  EXPECT_EXIT(
      {
        PrepareExitAtOnce();
        ExitAtOnce(143, "the first");
        ExitAtOnce(143, "the second");
      },
      ExitedWithCode(143), "^(.*the first\n)?$");
}

absl::StatusOr<int> Half(int number) {
  if (number % 2 != 0) {
    return InvalidArgumentError("number ", number, " is odd");
  }
  return number / 2;
}

absl::Status CheckEven(int number, int& calls) {
  ++calls;
  NEREUS_TRY(Half(number));
  ++calls;
  return absl::OkStatus();
}

absl::StatusOr<int> Quarter(int number) {
  const int half = NEREUS_TRY(Half(number));
  return NEREUS_TRY(Half(half));
}

absl::StatusOr<std::unique_ptr<std::string>> Name(bool exists) {
  if (!exists) {
    return NotFoundError("no name");
  }
  return std::make_unique<std::string>("nereus");
}

absl::StatusOr<std::string> NameText(bool exists) {
  const std::unique_ptr<std::string> name = NEREUS_TRY(Name(exists));
  return *name;
}

TEST(StatusTest, TryIsTheValueWhereThereIsNoError) {
  EXPECT_EQ(*Quarter(12), 3);
}

TEST(StatusTest, TryReturnsTheErrorFromTheCaller) {
  const absl::StatusOr<int> quarter = Quarter(6);
  EXPECT_EQ(quarter.status(), absl::InvalidArgumentError("number 3 is odd"));
}

TEST(StatusTest, TryAsAStatementSkipsTheRestOnlyAfterAnError) {
  int calls = 0;
  EXPECT_TRUE(CheckEven(2, calls).ok());
  EXPECT_EQ(calls, 2);
  calls = 0;
  EXPECT_EQ(CheckEven(3, calls), absl::InvalidArgumentError("number 3 is odd"));
  EXPECT_EQ(calls, 1);
}

TEST(StatusTest, TryMovesAValueThatCannotBeCopied) {
  EXPECT_EQ(*NameText(true), "nereus");
  EXPECT_EQ(NameText(false).status(), absl::NotFoundError("no name"));
}

TEST(StatusTest, AnErrorJoinsItsParts) {
  EXPECT_EQ(UnavailableError("port ", 29500, " of ", std::string("a:1")),
            absl::UnavailableError("port 29500 of a:1"));
}

TEST(StatusTest, APrefixKeepsTheCode) {
  EXPECT_EQ(Prefixed(absl::DataLossError("checksum differs"), "file ", 3, ": "),
            absl::DataLossError("file 3: checksum differs"));
}

struct Part {
  std::string label;
  float weight = 0.0f;
};

struct Whole {
  int rank = 0;
  bool is_done = false;
  double loss = 0.0;
  std::optional<int64_t> round;
  absl::Duration time;
  Part first;
  std::vector<Part> parts;
};

void ListPart(JsonFields& fields, Part& part) {
  fields.Text("label", part.label);
  fields.Float("weight", part.weight);
}

void ListWhole(JsonFields& fields, Whole& whole) {
  fields.Integer("rank", whole.rank, -1, 7);
  fields.Flag("is_done", whole.is_done);
  fields.NumberOrNan("loss", whole.loss);
  fields.OrNull("round", whole.round,
                [&](int64_t& round) { fields.Count("round", round); });
  fields.Seconds("time", whole.time);
  fields.Object("first", whole.first, ListPart);
  fields.Objects("parts", whole.parts, ListPart);
}

std::string Write(Whole whole) {
  nlohmann::ordered_json json;
  JsonFields fields(json);
  ListWhole(fields, whole);
  return json.dump();
}

absl::StatusOr<Whole> Read(const std::string& text) {
  const nlohmann::json json = ParseJson(text);
  JsonFields fields(json, "whole");
  Whole whole;
  ListWhole(fields, whole);
  if (!fields.status().ok()) return fields.status();
  return whole;
}

constexpr char kText[] =
    R"({"rank":3,"is_done":true,"loss":0.5,"round":9,"time":1.5,)"
    R"("first":{"label":"a","weight":0.1},"parts":[)"
    R"({"label":"b","weight":1.0},{"label":"c","weight":-2.0}]})";

TEST(JsonFieldsTest, WriterWritesInTheOrderOfTheList) {
  const auto whole = Read(kText);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->parts.size(), 2u);
  EXPECT_EQ(whole->time, absl::Seconds(1.5));
  EXPECT_EQ(Write(*whole), kText);
}

TEST(JsonFieldsTest, UnknownNumbersAreNull) {
  Whole whole;
  whole.loss = std::numeric_limits<double>::quiet_NaN();
  const std::string text = Write(whole);
  EXPECT_EQ(text,
            R"({"rank":0,"is_done":false,"loss":null,"round":null,"time":0.0,)"
            R"("first":{"label":"","weight":0.0},"parts":[]})");
  const auto again = Read(text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(std::isnan(again->loss));
  EXPECT_EQ(again->round, std::nullopt);
}

TEST(JsonFieldsTest, MistakeIsNamedByItsPathAndValue) {
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } kCases[] = {
      {"{\"rank\"", "[\"rank\"", "whole: is not JSON"},
      {"\"rank\"", "\"r\"", "whole: rank is missing"},
      {"\"rank\":3", "\"rank\":8", "whole: rank is 8, not from -1 to 7"},
      {"\"rank\":3", "\"rank\":-2", "rank is -2, not from -1 to 7"},
      {"\"rank\":3", "\"rank\":18446744073709551615", "18446744073709551615,"},
      {"\"rank\":3", "\"rank\":3.0", "rank is number 3.0, not an integer"},
      {"true", "1", "is_done is number 1, not a boolean"},
      {"\"round\"", "\"r\"", "whole: round is missing"},
      {"1.5", "-1.5", "time is -1.5, below 0"},
      {"1.5", "null", "time is null, not a number"},
      {"0.1", "1e39", "whole: first: weight is 1e+39, not a float32"},
      {"\"c\"", "7", "whole: parts[1]: label is number 7, not a string"},
      {"\"parts\":[", "\"parts\":[0,", "parts[0]: is not a JSON object"},
      {"\"first\":", "\"first\":0,\"f\":", "first is number 0, not an object"},
  };
  for (const auto& c : kCases) {
    std::string text = kText;
    const size_t at = text.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    text.replace(at, std::string(c.from).size(), c.to);
    const auto whole = Read(text);
    EXPECT_EQ(whole.status().code(), absl::StatusCode::kInvalidArgument)
        << text;
    EXPECT_THAT(std::string(whole.status().message()), HasSubstr(c.message));
  }
  EXPECT_THAT(std::string(Read("[]").status().message()),
              HasSubstr("whole: is not a JSON object"));
}

// Later mistakes often follow from the first one.
TEST(JsonFieldsTest, FirstMistakeStays) {
  EXPECT_THAT(std::string(Read("{\"is_done\":3}").status().message()),
              HasSubstr("rank is missing"));
}

}  // namespace
}  // namespace nereus
