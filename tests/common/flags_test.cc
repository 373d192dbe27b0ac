// Command lines: errors and warnings, the first line of a log, job files, and
// files with models. A command line that may end the process is parsed in a
// child process (EXPECT_EXIT), with variables of its own; gtest compares what
// the child writes to standard error. job_spec_test.cc tests a job's options.

#include "common/flags/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/flags/given_options.h"
#include "common/flags/job_file.h"
#include "common/flags/model_file.h"
#include "tests/testing/status_matchers.h"

extern char** environ;

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Assignments of environment variables: "NEREUS_BATCH=3".
using Variables = std::vector<std::string>;

// Sets these variables, and removes all others with a NEREUS prefix.
void SetVariables(const Variables& variables) {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!absl::StartsWith(*entry, "NEREUS")) continue;
    names.push_back(
        std::string(*entry).substr(0, std::string(*entry).find('=')));
  }
  for (const std::string& name : names) unsetenv(name.c_str());
  for (const std::string& variable : variables) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(variable, absl::MaxSplits('=', 1));
    setenv(parts.first.c_str(), parts.second.c_str(), /*overwrite=*/1);
  }
}

// A program with a few flags, and with a command that has a flag.
struct Program {
  Program() {
    app.require_subcommand(0, 1);
    AddNumber(app, "batch", batch, 1, 4096, "images of a step");
    AddFlag(app, "batch-limit", batch_limit, "another flag");
    AddFlag(app, "seed", seed, "any number");
    AddFlag(app, "learning-rate", learning_rate, "step size");
    AddFlag(app, "beta1", beta1, "of adam");
    AddFlag(app, "beta2", beta2, "of adam");
    AddSwitch(app, "json", json, "report as JSON");
    AddChoice(app, "optimizer", place,
              {{"server", OptimizerPlace::kServer},
               {"worker", OptimizerPlace::kWorker}},
              "where it runs");
    AddChoice(app, "update", rule,
              {{"sgd", UpdateRule::kSgd}, {"adam", UpdateRule::kAdam}},
              "the rule");
    CLI::App* const plan = app.add_subcommand("plan", "makes a plan");
    AddFlag(*plan, "workers", workers, "how many");
  }

  int64_t batch = 32;
  int64_t batch_limit = 0;
  int64_t seed = 1;
  double learning_rate = 0.02;
  double beta1 = 0.9;
  double beta2 = 0.999;
  bool json = false;
  OptimizerPlace place = OptimizerPlace::kServer;
  UpdateRule rule = UpdateRule::kSgd;
  int workers = 1;
  CLI::App app{"Tests flags.", "tester"};
};

// A command line in the form that main gets.
class CommandLine {
 public:
  explicit CommandLine(const std::vector<std::string>& arguments)
      : texts_(arguments) {
    texts_.insert(texts_.begin(), "tester");
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  int argc() const { return static_cast<int>(texts_.size()); }
  char** argv() { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

// Exit code of a child process that accepts its flags.
constexpr int kGoesOn = 77;

int ExitCodeOf(int parsed) { return parsed == -1 ? kGoesOn : parsed; }

int Parse(Program& program, const std::vector<std::string>& arguments) {
  CommandLine line(arguments);
  return ParseFlags(program.app, line.argc(), line.argv());
}

// Parses the arguments and exits with the result of ParseFlags.
[[noreturn]] void ParseAndExit(const std::vector<std::string>& arguments,
                               const Variables& variables = {}) {
  SetVariables(variables);
  Program program;
  std::exit(ExitCodeOf(Parse(program, arguments)));
}

// Text that no line has.
constexpr char kNothing[] = "no text has this";

// Arguments and assignments of variables are separated by |.
struct Mistake {
  const char* name;
  const char* arguments;
  const char* says;
  const char* says_not = kNothing;
  const char* variables = "";
};

std::vector<std::string> Split(const char* texts) {
  return absl::StrSplit(texts, '|', absl::SkipEmpty());
}

class FlagsDeathTest : public testing::TestWithParam<Mistake> {};

TEST_P(FlagsDeathTest, EndsTheProgramWithTheMistake) {
  const Mistake& mistake = GetParam();
  EXPECT_EXIT(ParseAndExit(Split(mistake.arguments), Split(mistake.variables)),
              testing::ExitedWithCode(2),
              AllOf(HasSubstr("tester: "), HasSubstr(mistake.says),
                    Not(HasSubstr(mistake.says_not)),
                    HasSubstr("Run with --help for the flags.")));
}

std::string NameOf(const testing::TestParamInfo<Mistake>& info) {
  return info.param.name;
}

const Mistake kUnknownFlags[] = {
    {"UnlikeOtherNames", "--frobnicate=1", "unknown flag --frobnicate. Run",
     "did you mean"},
    {"ExtraLetter", "--battch=1",
     "unknown flag --battch; did you mean --batch?"},
    {"MissingLetter", "--bach=1", "--bach; did you mean --batch?"},
    {"WrongLetter", "--botch=1", "--botch; did you mean --batch?"},
    {"SwappedLetters", "--bacth=1", "--bacth; did you mean --batch?"},
    {"TwoSwappedPairs", "--laerning-rtae=1",
     "--laerning-rtae; did you mean --learning-rate?"},
    {"TwoTypos", "--lerning-rat=1",
     "--lerning-rat; did you mean --learning-rate?"},
    {"ThreeTypos", "--lernin-rat=1", "unknown flag --lernin-rat. Run",
     "did you mean"},
    // --beta2 differs by one letter, --beta1 by two.
    {"LikeTwoFlags", "--beta22=1", "did you mean --beta2?"},
    {"ValueAfterASpace", "--bacth|5",
     "unknown flag --bacth; did you mean --batch?"},
    {"FirstOfTwoMistakes", "--frob=a: b|--bacth=5", "unknown flag --frob. Run"},
    {"NoDashes", "fly", "unknown argument fly. Run"},
    {"TwoWithoutDashes", "fly|high", "unknown arguments fly high. Run"},
    {"FlagOfACommand", "plan|--wrokers=3",
     "--wrokers; did you mean --workers?"},
    {"FlagOfAnAbsentCommand", "--wrokers=3", "unknown flag --wrokers. Run",
     "did you mean"},
};

INSTANTIATE_TEST_SUITE_P(UnknownFlag, FlagsDeathTest,
                         testing::ValuesIn(kUnknownFlags), NameOf);

const Mistake kBadValues[] = {
    {"NoNumber", "--seed=abc",
     "tester: --seed is \"abc\", must be a whole number"},
    {"NoNumberAfterASpace", "--seed|abc", "--seed is \"abc\""},
    {"NoNumberAfterEqualsSign", "--seed=a = b", "--seed is \"a = b\", must"},
    {"NoInteger", "--seed=1.5", "--seed is \"1.5\""},
    {"NoNumberInARange", "--batch=abc",
     "--batch is \"abc\", must be a number from 1 to 4096"},
    {"OutOfRange", "--batch=0",
     "tester: --batch is \"0\", must be a number from 1"},
    {"NoSuchChoice", "--update=rms",
     "--update: \"rms\" is not one of adam, sgd. Run", "did you mean"},
    {"ChoiceOfAnotherFlag", "--optimizer=adam",
     "--optimizer: \"adam\" is not one of server, worker; did you "
     "mean --update=adam?"},
    {"Twice", "--batch=1|--batch=2", "--batch is given more than once"},
    {"Missing", "--batch", "--batch needs a value"},
    {"VariableOfACommandsFlag", "plan|--workers=many", "--workers is \"many\""},
};

INSTANTIATE_TEST_SUITE_P(BadValue, FlagsDeathTest,
                         testing::ValuesIn(kBadValues), NameOf);

const Mistake kBadVariables[] = {
    {"NoNumber", "",
     "tester: the variable NEREUS_SEED is \"abc\", must be a whole "
     "number",
     kNothing, "NEREUS_SEED=abc"},
    {"OutOfRange", "",
     "tester: the variable NEREUS_BATCH is \"0\", must be a number "
     "from 1 to 4096",
     kNothing, "NEREUS_BATCH=0"},
    {"NoSuchChoice", "",
     "the variable NEREUS_UPDATE: \"rms\" is not one of adam, sgd", kNothing,
     "NEREUS_UPDATE=rms"},
    {"NameWithADash", "", "the variable NEREUS_LEARNING_RATE is \"fast\"",
     kNothing, "NEREUS_LEARNING_RATE=fast"},
    // The flag on the command line replaces the variable.
    {"BesideABadFlag", "--seed=abc", "tester: --seed is \"abc\"", "variable",
     "NEREUS_SEED=32"},
};

INSTANTIATE_TEST_SUITE_P(BadVariable, FlagsDeathTest,
                         testing::ValuesIn(kBadVariables), NameOf);

// A variable that this program does not know may belong to another program.
struct Notice {
  const char* name;
  const char* variable;
  const char* says;
  const char* says_not = kNothing;
};

class VariableDeathTest : public testing::TestWithParam<Notice> {};

TEST_P(VariableDeathTest, CausesAWarningAndTheProgramGoesOn) {
  const Notice& notice = GetParam();
  EXPECT_EXIT(ParseAndExit({}, {notice.variable}),
              testing::ExitedWithCode(kGoesOn),
              AllOf(HasSubstr("WARNING"), HasSubstr(notice.says),
                    Not(HasSubstr(notice.says_not))));
}

INSTANTIATE_TEST_SUITE_P(
    All, VariableDeathTest,
    testing::Values(
        Notice{"UnlikeOtherNames", "NEREUS_FROBNICATE=1",
               "the variable NEREUS_FROBNICATE has no meaning\n",
               "did you mean"},
        Notice{"LikeAVariableOfThisProgram", "NEREUS_BACTH=1",
               "the variable NEREUS_BACTH has no meaning; did you mean "
               "NEREUS_BATCH?"},
        Notice{"LikeAVariableOfAnotherProgram", "NEREUS_STALNESS=1",
               "did you mean NEREUS_STALENESS?"},
        Notice{"LowerCaseName", "NEREUS_batch=1",
               "the variable NEREUS_batch has no meaning"},
        Notice{"Empty", "NEREUS_BATCH=",
               "the variable NEREUS_BATCH is empty and does not count"},
        Notice{"EmptyOfAnotherProgram", "NEREUS_STALENESS=",
               "the variable NEREUS_STALENESS is empty and does not count"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(FlagsDeathTest, VariablesWithAMeaningCauseNoWarning) {
  EXPECT_EXIT(ParseAndExit({}, {"NEREUS_BATCH=3", "NEREUS_STALENESS=4",
                                "NEREUSX=5", "NEREUS=6"}),
              testing::ExitedWithCode(kGoesOn), IsEmpty());
}

// A shell sets the variables for servers, workers and nereusctl alike.
TEST(FlagsDeathTest, EachProgramKnowsTheVariablesOfJobFlags) {
  EXPECT_EXIT(
      {
        CLI::App other("Has the flags of a job.", "other");
        LogFlags log;
        JobFlags job;
        bool shared_memory = true;
        const std::vector<std::string> flags = FlagsAddedBy(other, [&] {
          AddCommonFlags(other, "other", log);
          AddJobFlags(other, job);
          AddSharedMemoryFlag(other, shared_memory);
        });
        Variables variables;
        for (const std::string& flag : flags) {
          if (flag == "--version") continue;  // No variable sets --version.
          variables.push_back(FlagVariable(flag.substr(2)) + "=1");
        }
        SetVariables(variables);
        CLI::App app("Has no flag of its own.", "tester");
        CommandLine line({});
        const int code = ParseFlags(app, line.argc(), line.argv());
        std::exit(variables.size() > 20 ? ExitCodeOf(code) : 1);
      },
      testing::ExitedWithCode(kGoesOn), IsEmpty());
}

TEST(FlagsDeathTest, HelpAndVersionExitWithSuccess) {
  EXPECT_EXIT(ParseAndExit({"--help"}), testing::ExitedWithCode(0), IsEmpty());
  EXPECT_EXIT(
      {
        SetVariables({});
        Program program;
        LogFlags log;
        AddCommonFlags(program.app, "tester", log);
        std::exit(ExitCodeOf(Parse(program, {"--version"})));
      },
      testing::ExitedWithCode(0), IsEmpty());
}

// The parser stops at the mistake, before it has the value of --log-format.
TEST(FlagsDeathTest, MistakeHasTheFormatOfTheLog) {
  const auto json = AllOf(HasSubstr("\"severity\":\"ERROR\""),
                          HasSubstr("\"message\":\"tester: "),
                          HasSubstr("\"event\":\"end\"}\n"));
  EXPECT_EXIT(ParseAndExit({"--batch=x", "--log-format=json"}),
              testing::ExitedWithCode(2), json);
  EXPECT_EXIT(ParseAndExit({"--batch=x", "--log-format", "json"}),
              testing::ExitedWithCode(2), json);
  EXPECT_EXIT(ParseAndExit({"--batch=x"}, {"NEREUS_LOG_FORMAT=json"}),
              testing::ExitedWithCode(2), json);
  EXPECT_EXIT(ParseAndExit({"--batch=x", "--log-format=text"},
                           {"NEREUS_LOG_FORMAT=json"}),
              testing::ExitedWithCode(2), Not(HasSubstr("severity")));
}

// Ends the process, with kGoesOn if `what` is true.
[[noreturn]] void ExitWith(bool what) { std::exit(what ? kGoesOn : 1); }

TEST(FlagsDeathTest, VariableSetsAFlagAndTheCommandLineReplacesIt) {
  EXPECT_EXIT(
      {
        SetVariables({"NEREUS_BATCH=64", "NEREUS_LEARNING_RATE=0.5",
                      "NEREUS_JSON=true", "NEREUS_SEED="});
        Program program;
        const int code = Parse(program, {"--batch=128"});
        ExitWith(code == -1 && program.batch == 128 &&
                 program.learning_rate == 0.5 && program.json &&
                 program.seed == 1);
      },
      testing::ExitedWithCode(kGoesOn),
      HasSubstr("NEREUS_SEED is empty and does not count"));
}

// A wrong variable does not matter if the command line has its flag.
TEST(FlagsDeathTest, ReplacedVariableMayBeWrong) {
  EXPECT_EXIT(ParseAndExit({"--batch=64"}, {"NEREUS_BATCH=abc"}),
              testing::ExitedWithCode(kGoesOn), IsEmpty());
}

TEST(FlagsTest, VariableHasTheNameOfItsFlag) {
  EXPECT_EQ(FlagVariable("batch"), "NEREUS_BATCH");
  EXPECT_EQ(FlagVariable("learning-rate"), "NEREUS_LEARNING_RATE");
  EXPECT_EQ(FlagVariable("beta1"), "NEREUS_BETA1");
}

TEST(FlagsTest, AddedFlagsAreNamedInOrder) {
  Program program;
  bool first = false;
  int second = 0;
  EXPECT_THAT(FlagsAddedBy(program.app, [] {}), IsEmpty());
  EXPECT_THAT(FlagsAddedBy(program.app,
                           [&] {
                             AddSwitch(program.app, "zebra", first, "");
                             AddFlag(program.app, "ape", second, "");
                           }),
              ElementsAre("--zebra", "--ape"));
}

// Flags that have no effect with the other options.

absl::Status RefuseBatchAndJson(const std::vector<std::string>& arguments,
                                const Variables& variables = {}) {
  SetVariables(variables);
  Program program;
  CommandLine line(arguments);
  EXPECT_EQ(ParseFlags(program.app, line.argc(), line.argv()), -1);
  return RefuseFlags(program.app, line.argc(), line.argv(),
                     {"--batch", "--json"}, "with --replay");
}

TEST(FlagsTest, IneffectiveFlagIsRefusedWithNameAndReason) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {"--batch=3"}, {"--batch", "3"}, {"--beta1=0", "--batch=3"}}) {
    const absl::Status status = RefuseBatchAndJson(arguments);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "--batch does not count with --replay");
  }
  EXPECT_EQ(RefuseBatchAndJson({"--json"}).message(),
            "--json does not count with --replay");
}

TEST(FlagsTest, OtherFlagsAreNotRefused) {
  EXPECT_TRUE(RefuseBatchAndJson({}).ok());
  EXPECT_TRUE(RefuseBatchAndJson({"--beta1=0", "--update=adam"}).ok());
  EXPECT_TRUE(RefuseBatchAndJson({"--batch-limit=3"}).ok());
}

TEST(FlagsDeathTest, VariablesThatDoNotCountAreLoggedOnALineAndNotRefused) {
  EXPECT_EXIT(
      ExitWith(RefuseBatchAndJson({}, {"NEREUS_BATCH=3"}).ok()),
      testing::ExitedWithCode(kGoesOn),
      HasSubstr("the variable NEREUS_BATCH does not count with --replay"));
  EXPECT_EXIT(
      ExitWith(
          RefuseBatchAndJson({}, {"NEREUS_BATCH=3", "NEREUS_JSON=true"}).ok()),
      testing::ExitedWithCode(kGoesOn),
      HasSubstr("the variables NEREUS_BATCH, NEREUS_JSON do not count with "
                "--replay\n"));
}

// Messages that name the flags of options instead of their fields.

struct Renaming {
  const char* name;
  std::string message;
  std::string shown;
};

class FlagNamesTest : public testing::TestWithParam<Renaming> {};

TEST_P(FlagNamesTest, ErrorsNameFlagsAsTheUserTypedThem) {
  Program program;
  EXPECT_EQ(WithFlagNames(program.app, GetParam().message,
                          {{"coordinator_address", "--coordinator"},
                           {"period", "--every"}}),
            GetParam().shown);
}

INSTANTIATE_TEST_SUITE_P(
    All, FlagNamesTest,
    testing::Values(
        Renaming{"FieldAtTheStart", "learning_rate is -1, must be > 0",
                 "--learning-rate is -1, must be > 0"},
        Renaming{"SingleWordFieldAtTheStart", "batch is 0", "--batch is 0"},
        Renaming{"WordAfterTheStart", "the batch is too large for json",
                 "the batch is too large for json"},
        Renaming{"FieldInTheMiddle", "0 is no learning_rate.",
                 "0 is no --learning-rate."},
        Renaming{"LastWord", "needs learning_rate", "needs --learning-rate"},
        Renaming{"FieldWithOtherFlagName", "coordinator_address is empty",
                 "--coordinator is empty"},
        Renaming{"WordWithOtherFlagName", "period is 0; the period counts",
                 "--every is 0; the period counts"},
        Renaming{"FlagName", "--batch is 0", "--batch is 0"},
        Renaming{"FieldWithoutAFlag", "lease_seconds is 0",
                 "lease_seconds is 0"},
        Renaming{"EmptyMessage", "", ""}),
    [](const auto& info) { return std::string(info.param.name); });

// Returns the first line of a program with these arguments.
std::string StartOf(const std::vector<std::string>& arguments,
                    const Variables& variables = {}) {
  SetVariables(variables);
  CLI::App app("Tests the first line.", "tester");
  int steps = 10;
  bool once = false;
  LogFlags log;
  JobFlags job;
  AddFlag(app, "steps", steps, "a number");
  AddSwitch(app, "once", once, "a switch");
  AddCommonFlags(app, "tester", log);
  AddJobFlags(app, job);
  CommandLine line(arguments);
  EXPECT_EQ(ParseFlags(app, line.argc(), line.argv()), -1);
  return DescribeStart(app, line.argc(), line.argv(), &job);
}

const std::string kName = absl::StrCat("tester ", kVersion);

TEST(GivenOptionsTest, OptionsWithTheirDefaultsAreNotShown) {
  EXPECT_EQ(StartOf({}), kName);
  EXPECT_EQ(StartOf({"--steps=10", "--log-format=text", "--update=sgd"}),
            kName);
}

TEST(GivenOptionsTest, OtherOptionsAreShownByOrigin) {
  EXPECT_EQ(StartOf({"--steps", "20", "--once"},
                    {"NEREUS_LOG_FORMAT=json", "NEREUS_STEPS=30"}),
            absl::StrCat(kName,
                         "; command line: --steps=20 --once=true"
                         "; variables: NEREUS_LOG_FORMAT=json"));
}

TEST(GivenOptionsTest, OptionsOfTheJobFileAreShownUnlessAFlagReplacesThem) {
  const std::string path = testing::TempDir() + "/given_options.conf";
  std::ofstream(path) << "workers = 3\nquorum = solo\nstaleness = 2\n"
                         "update = sgd\n";
  EXPECT_EQ(StartOf({absl::StrCat("--job=", path), "--staleness=4"}),
            absl::StrCat(kName, "; command line: --job=", path,
                         " --staleness=4; job file ", path,
                         ": workers=3 quorum=solo"));
}

TEST(JobFileTest, FileSetsOnlyTheNamedOptions) {
  JobSpec spec;
  const auto names = ParseJobText(
      "# A job of two machines.\n"
      "\n"
      "workers = 8   # Four on each.\r\n"
      "\tupdate=adam\n"
      "learning-rate  =  0.5",
      spec);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, ElementsAre("workers", "update", "learning-rate"));
  EXPECT_EQ(spec.workers, 8);
  EXPECT_EQ(spec.options.optimizer.rule, UpdateRule::kAdam);
  EXPECT_EQ(spec.options.optimizer.learning_rate, 0.5F);
  EXPECT_EQ(spec.shards, JobSpec().shards);
}

struct BadText {
  const char* name;
  const char* text;
  const char* message;
};

class BadJobFileTest : public testing::TestWithParam<BadText> {};

TEST_P(BadJobFileTest, BadJobFileIsRefusedWithTheLine) {
  JobSpec spec;
  const absl::Status status = ParseJobText(GetParam().text, spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Lines, BadJobFileTest,
    testing::Values(
        BadText{
            "UnknownOption", "workers = 2\nlerning-rate = 0.1\n",
            "line 2: \"lerning-rate\" is not an option of a job; did you mean "
            "learning-rate?"},
        BadText{"FlagInsteadOfName", "--workers=2",
                "line 1: \"--workers\" is not an option of a job; did you mean "
                "workers?"},
        BadText{
            "Value", "update = sdg",
            "line 1: update: \"sdg\" is not one of sgd, nesterov, adam, adamw"},
        BadText{"NoValue", "workers =",
                "line 1: workers: \"\" is not a number from 1 to 65536"},
        BadText{"NoEqualsSign", "workers 2",
                "line 1: \"workers 2\" is not NAME = VALUE"},
        BadText{"Twice", "workers = 2\nworkers = 3",
                "line 2: workers is set more than once"},
        BadText{"Binary", "\x01\x02=\xff",
                "line 1: \"\\x01\\x02\" is not an option of a job"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(JobFileTest, WrittenJobIsReadBack) {
  JobSpec spec;
  spec.name = "run#3";
  spec.workers = 3;
  spec.options.rounds.quorum = Quorum::kSolo;
  spec.options.rounds.staleness = 7;
  spec.options.optimizer.learning_rate = 0.1F / 3;
  JobSpec read;
  const auto names = ParseJobText(JobText(spec), read);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(JobText(read), JobText(spec));
  EXPECT_EQ(read.options, spec.options);
  EXPECT_EQ(read.name, "run#3");
  EXPECT_THAT(JobText(spec),
              AllOf(HasSubstr("workers = 3\n"), HasSubstr("staleness = 7\n"),
                    Not(HasSubstr("beta1"))));
}

TEST(JobFileTest, UnreadableFileIsNamed) {
  JobSpec spec;
  EXPECT_THAT(ReadJobFile("/nowhere/job.conf", spec).status(),
              IsInvalidArgument("/nowhere/job.conf"));
}

TEST(JobFileTest, ByteOrderMarkIsNoPartOfTheFirstOption) {
  const std::string path = absl::StrCat(testing::TempDir(), "/marked.conf");
  std::ofstream(path) << "\xef\xbb\xbfworkers = 7\r\n";
  JobSpec spec;
  const auto names = ReadJobFile(path, spec);
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(spec.workers, 7);
}

// Precedence.

class JobFlagsTest : public testing::Test {
 protected:
  JobFlagsTest() {
    std::ofstream(path_) << "workers = 2\nservers = 2\nlease = 20\n";
  }

  // Returns the job that a command line describes.
  JobSpec Parse(const std::vector<std::string>& arguments,
                const Variables& variables = {}) {
    SetVariables(variables);
    CLI::App app("Has a job.", "tester");
    JobFlags flags;
    AddJobFlags(app, flags);
    CommandLine line(arguments);
    code_ = ParseFlags(app, line.argc(), line.argv());
    return flags.spec;
  }

  const std::string path_ = absl::StrCat(testing::TempDir(), "/job.conf");
  int code_ = 0;
};

TEST_F(JobFlagsTest, FlagWinsOverVariableAndVariableOverFile) {
  // The position of --job on the command line does not matter.
  const std::string file = "--job=" + path_;
  for (const auto& line : std::vector<std::vector<std::string>>{
           {"--lease=40", file}, {file, "--backup=0", "--lease=40"}}) {
    const JobSpec spec = Parse(line, {"NEREUS_SERVERS=3", "NEREUS_LEASE=30"});
    EXPECT_EQ(code_, -1);
    EXPECT_EQ(spec.workers, 2);         // From the file.
    EXPECT_EQ(spec.shards, 3);          // From the variable.
    EXPECT_EQ(spec.lease_seconds, 40);  // From the flag.
    EXPECT_EQ(spec.options.nan, JobSpec().options.nan);
  }
}

TEST_F(JobFlagsTest, VariableMayNameTheFile) {
  EXPECT_EQ(Parse({}, {"NEREUS_JOB=" + path_}).workers, 2);
  EXPECT_EQ(code_, -1);
}

TEST_F(JobFlagsTest, SwitchWorksWithAndWithoutAValue) {
  EXPECT_TRUE(Parse({"--deterministic"}).options.deterministic);
  EXPECT_TRUE(Parse({"--deterministic=on"}).options.deterministic);
  EXPECT_FALSE(Parse({"--deterministic=off"}).options.deterministic);
  EXPECT_EQ(code_, -1);
}

TEST_F(JobFlagsTest, WrongFileIsAUsageError) {
  std::ofstream(path_) << "workers = many\n";
  testing::internal::CaptureStderr();
  Parse({"--job=" + path_});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr(absl::StrCat("tester: --job: ", path_,
                                     ", line 1: workers: \"many\" is not a "
                                     "number from 1 to 65536")));
  EXPECT_EQ(code_, 2);
}

// Writes a table with one layer of 2^20 rows a sample. Returns its name.
std::string TableFile() {
  const std::string path = testing::TempDir() + "/table.csv";
  EXPECT_TRUE(WriteTextFile(path,
                            "name,kind,m,n,parameters,rows_per_sample\n"
                            "fc,fc,64,64,4160,1048576")
                  .ok());
  return path;
}

TEST(ModelFileTest, TableIsRead) {
  const auto layers = LoadModelOrFile(TableFile(), 3);
  ASSERT_TRUE(layers.ok()) << layers.status();
  EXPECT_EQ(layers->front().rows, 3 << 20);
}

// Spreadsheets write the mark. Only the first one is a mark.
TEST(ModelFileTest, ByteOrderMarkIsLeftOut) {
  const std::string path = testing::TempDir() + "/marked.csv";
  const std::string table =
      "name,kind,m,n,parameters,rows_per_sample\r\nfc,fc,64,64,4160,2";
  ASSERT_TRUE(WriteTextFile(path, "\xef\xbb\xbf" + table).ok());
  const auto layers = LoadModelOrFile(path, 1);
  ASSERT_TRUE(layers.ok()) << layers.status();
  EXPECT_EQ(layers->front().name, "fc");

  ASSERT_TRUE(WriteTextFile(path, "\xef\xbb\xbf\xef\xbb\xbf" + table).ok());
  EXPECT_THAT(std::string(LoadModelOrFile(path, 1).status().message()),
              HasSubstr("line 1: expected the header"));
  ASSERT_TRUE(WriteTextFile(path, "\xef\xbb").ok());
  EXPECT_EQ(ReadTextFile(path).value_or(""), "\xef\xbb\n");
}

TEST(ModelFileTest, ComputeTraceIsReadAndItsErrorsNameTheFile) {
  const auto layers = LoadModelOrFile(TableFile(), 1);
  ASSERT_TRUE(layers.ok()) << layers.status();
  const std::string path = testing::TempDir() + "/times.json";
  ASSERT_TRUE(WriteTextFile(path,
                            "\xef\xbb\xbf{\"layers\": [{\"name\": \"fc\", "
                            "\"forward_seconds\": 1, "
                            "\"backward_seconds\": 2}]}")
                  .ok());
  const auto times = LoadComputeTrace(path, *layers);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(times->front().backward, absl::Seconds(2));

  ASSERT_TRUE(WriteTextFile(path, "{}").ok());
  EXPECT_THAT(LoadComputeTrace(path, *layers).status(),
              IsInvalidArgument(path + ": "));
}

TEST(ModelFileTest, WrongBatchIsNoErrorOfTheFile) {
  for (const std::string& model : {TableFile(), std::string("vgg19")}) {
    const absl::Status status = LoadModelOrFile(model, 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "batch is 0, not from 1 to 1048576");
  }
}

TEST(ModelFileTest, LayerWithTooManyRowsIsAnErrorOfTheFile) {
  const std::string path = TableFile();
  EXPECT_THAT(LoadModelOrFile(path, 1 << 20).status(),
              IsInvalidArgument(path + ": line 2, column 6 (rows_per_sample)"));
}

}  // namespace
}  // namespace nereus
