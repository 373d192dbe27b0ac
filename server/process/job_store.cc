#include "server/process/job_store.h"

#include <fcntl.h>
#include <sqlite3.h>

#include <utility>

#include "common/base/descriptor.h"
#include "common/base/status.h"
#include "server/coordinator/job_state.h"

namespace nereus {
namespace {

// Schema of the file. The application id in the file's header tells files of
// Nereus from those of other programs.
constexpr char kSchema[] =
    "PRAGMA application_id = 0x4e455245;"
    "PRAGMA user_version = 1;"
    "CREATE TABLE IF NOT EXISTS jobs ("
    "  name TEXT PRIMARY KEY,"
    "  state BLOB NOT NULL"
    ") WITHOUT ROWID;";
constexpr int kApplication = 0x4e455245;
constexpr int kVersionHere = 1;

// Returns the status code for a result code of SQLite.
absl::StatusCode CodeOf(int result) {
  switch (result & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::StatusCode::kUnavailable;
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      return absl::StatusCode::kInvalidArgument;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
      return absl::StatusCode::kPermissionDenied;
    case SQLITE_FULL:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kUnknown;
  }
}

// A prepared statement. After an error of the constructor or of a Bind
// function, later Bind functions do nothing, and Step returns the error.
class Statement {
 public:
  Statement(sqlite3* database, const char* sql) {
    result_ = sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void BindText(int index, const std::string& text) {
    if (result_ != SQLITE_OK) return;
    result_ = sqlite3_bind_text(statement_, index, text.data(),
                                static_cast<int>(text.size()), SQLITE_STATIC);
  }
  void BindBlob(int index, const std::string& bytes) {
    if (result_ != SQLITE_OK) return;
    result_ = sqlite3_bind_blob64(statement_, index, bytes.data(), bytes.size(),
                                  SQLITE_STATIC);
  }
  // Returns SQLITE_ROW, SQLITE_DONE or the first error.
  int Step() {
    return result_ == SQLITE_OK ? sqlite3_step(statement_) : result_;
  }
  std::string Blob(int column) const {
    const void* bytes = sqlite3_column_blob(statement_, column);
    const int length = sqlite3_column_bytes(statement_, column);
    return {static_cast<const char*>(bytes), static_cast<size_t>(length)};
  }
  int Integer(int column) const {
    return sqlite3_column_int(statement_, column);
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int result_ = SQLITE_OK;
};

// Returns the number that a query yields; -1 if it fails.
int ReadPragma(sqlite3* database, const char* sql) {
  Statement pragma(database, sql);
  return pragma.Step() == SQLITE_ROW ? pragma.Integer(0) : -1;
}

}  // namespace

absl::Status JobStore::Error(const char* what) const {
  return absl::Status(
      CodeOf(sqlite3_errcode(database_)),
      absl::StrCat(path_, ": cannot ", what, ": ", sqlite3_errmsg(database_)));
}

// Only Open calls this, so an error means that the file cannot be opened.
absl::Status JobStore::Execute(const char* sql) {
  const int result = sqlite3_exec(database_, sql, nullptr, nullptr, nullptr);
  if (result == SQLITE_OK) return absl::OkStatus();
  if (result == SQLITE_BUSY) {
    return UnavailableError(
        path_,
        " is open in another process, maybe this job's coordinator: stop that "
        "one first, or give this one another file");
  }
  return Error("open it");
}

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(
    const std::string& path) {
  // Makes the file, if there is none, so that only this user may read it: the
  // state has what lets a process resume as a member. SQLite gives its journal
  // the mode of the file. No existing file is opened here, because to close it
  // would drop SQLite's lock: such locks belong to the process (fcntl).
  Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600))
      .Close();
  sqlite3* database = nullptr;
  const int opened =
      sqlite3_open_v2(path.c_str(), &database,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  // Even a failed open yields a handle, which has the error and must be closed.
  auto store = std::unique_ptr<JobStore>(new JobStore(path, database));
  if (opened != SQLITE_OK) return store->Error("open it");
  // Locks the file for as long as it is open, and has SQLite flush each change
  // to disk. The empty transaction takes the lock now.
  NEREUS_TRY(
      store->Execute("PRAGMA locking_mode = EXCLUSIVE;"
                     "PRAGMA synchronous = FULL;"
                     "BEGIN EXCLUSIVE; COMMIT;"));
  const int tables = ReadPragma(database, "SELECT count(*) FROM sqlite_master");
  const int application = ReadPragma(database, "PRAGMA application_id");
  const int version = ReadPragma(database, "PRAGMA user_version");
  if (tables > 0 && (application != kApplication || version != kVersionHere)) {
    return InvalidArgumentError(
        path, " is a SQLite file of application ", application, ", version ",
        version, "; a coordinator's has ", kApplication, " and ", kVersionHere);
  }
  NEREUS_TRY(store->Execute(kSchema));
  return store;
}

JobStore::~JobStore() { sqlite3_close(database_); }

absl::StatusOr<std::optional<CoordinatorState>> JobStore::Load(
    const std::string& name) {
  Statement select(database_, "SELECT state FROM jobs WHERE name = ?1");
  select.BindText(1, name);
  const int result = select.Step();
  if (result == SQLITE_DONE) return std::nullopt;
  if (result != SQLITE_ROW) return Error("read the job");
  absl::StatusOr<CoordinatorState> state = DecodeState(select.Blob(0));
  if (state.ok()) return *std::move(state);
  return DataLossError(path_, ": job ", name, ": ", state.status().message());
}

absl::Status JobStore::Save(const std::string& name,
                            const CoordinatorState& state) {
  const std::string bytes = EncodeState(state);
  Statement replace(database_, "REPLACE INTO jobs VALUES (?1, ?2)");
  replace.BindText(1, name);
  replace.BindBlob(2, bytes);
  return replace.Step() == SQLITE_DONE ? absl::OkStatus()
                                       : Error("save the job");
}

}  // namespace nereus
