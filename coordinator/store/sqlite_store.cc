#include "coordinator/store/sqlite_store.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr int64_t kSchemaVersion = 1;
constexpr int64_t kApplicationId = 0x48595046;  // "HYPF": another program's database is refused.

// Finalizes on every path.
class Statement {
 public:
  Statement(sqlite3* database, const char* sql) {
    code_ = sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void BindText(int index, const std::string& text) {
    if (code_ == SQLITE_OK) {
      code_ = sqlite3_bind_text(statement_, index, text.data(), static_cast<int>(text.size()),
                                SQLITE_TRANSIENT);
    }
  }
  void BindBlob(int index, const std::string& blob) {
    // A null pointer would bind NULL rather than an empty blob.
    if (code_ == SQLITE_OK) {
      code_ = sqlite3_bind_blob(statement_, index, blob.empty() ? "" : blob.data(),
                                static_cast<int>(blob.size()), SQLITE_TRANSIENT);
    }
  }
  void BindNumber(int index, int64_t number) {
    if (code_ == SQLITE_OK) code_ = sqlite3_bind_int64(statement_, index, number);
  }
  int Step() { return code_ == SQLITE_OK ? sqlite3_step(statement_) : code_; }
  std::string Bytes(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
  }
  int64_t Number(int column) { return sqlite3_column_int64(statement_, column); }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
};

// The first key that no longer starts with `prefix`; empty when there is none.
std::string PrefixEnd(std::string prefix) {
  while (!prefix.empty()) {
    const auto last = static_cast<unsigned char>(prefix.back());
    if (last != 0xff) {
      prefix.back() = static_cast<char>(last + 1);
      return prefix;
    }
    prefix.pop_back();
  }
  return prefix;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& directory,
                                                               Options options) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::InvalidArgumentError(absl::StrCat("cannot make state directory ", directory, ": ",
                                                   strerror(errno),
                                                   "; make its parent or name another"));
  }
  HF_RETURN_IF_ERROR(RequireLocalFilesystem(directory));
  HF_ASSIGN_OR_RETURN(auto lock, DirectoryLock::Acquire(directory));
  std::unique_ptr<SqliteStore> store(new SqliteStore(absl::StrCat(directory, "/state.sqlite"),
                                                     std::move(options), std::move(lock)));
  HF_RETURN_IF_ERROR(store->Prepare());
  return store;
}

SqliteStore::~SqliteStore() {
  MutexLock lock(&mutex_);
  sqlite3_close(database_);
}

absl::Status SqliteStore::Prepare() {
  MutexLock lock(&mutex_);
  const int code = sqlite3_open_v2(path_.c_str(), &database_,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  if (code != SQLITE_OK) return Error(code, "open");
  sqlite3_extended_result_codes(database_, 0);
  sqlite3_busy_timeout(database_,
                       static_cast<int>(absl::ToInt64Milliseconds(options_.busy_timeout)));
  // Read before anything is written: a file that is not ours stays as it was found.
  HF_RETURN_IF_ERROR(CheckSchema());
  HF_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
  // In WAL mode, NORMAL would lose the last commits on a power cut.
  HF_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
  HF_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Status made = Execute(
      absl::StrCat("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL,"
                   " mod_revision INTEGER NOT NULL) WITHOUT ROWID;"
                   "CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY CHECK (id = 1),"
                   " revision INTEGER NOT NULL);"
                   "INSERT OR IGNORE INTO counter VALUES (1, 0);"
                   "PRAGMA application_id=",
                   kApplicationId, ";PRAGMA user_version=", kSchemaVersion)
          .c_str());
  if (!made.ok()) {
    Execute("ROLLBACK").IgnoreError();
    return made;
  }
  return Execute("COMMIT");
}

absl::Status SqliteStore::CheckSchema() {
  HF_ASSIGN_OR_RETURN(const int64_t objects, Number("SELECT count(*) FROM sqlite_master"));
  if (objects == 0) return absl::OkStatus();  // A new file.
  HF_ASSIGN_OR_RETURN(const int64_t application, Number("PRAGMA application_id"));
  if (application != kApplicationId) {
    return absl::DataLossError(absl::StrCat(
        path_, " is another program's database; move it away or name another --state-directory"));
  }
  HF_ASSIGN_OR_RETURN(const int64_t version, Number("PRAGMA user_version"));
  if (version != kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " has schema version ", version,
                                                      ", this coordinator writes ", kSchemaVersion,
                                                      "; start the version that wrote it"));
  }
  Statement check(database_, "PRAGMA quick_check(1)");
  const int code = check.Step();
  if (code != SQLITE_ROW) return Error(code, "check");
  const std::string verdict = check.Bytes(0);
  if (verdict != "ok") {
    return absl::DataLossError(absl::StrCat(path_, " is damaged (", verdict.substr(0, 200),
                                            "); it was left as it is: restore a backup"));
  }
  return absl::OkStatus();
}

absl::StatusOr<StoreEntry> SqliteStore::Get(const std::string& key) {
  MutexLock lock(&mutex_);
  Statement statement(database_, "SELECT value, mod_revision FROM entries WHERE key = ?");
  statement.BindText(1, key);
  const int code = statement.Step();
  if (code == SQLITE_DONE) return absl::NotFoundError(absl::StrCat("no key '", key, "'"));
  if (code != SQLITE_ROW) return Error(code, "read");
  return StoreEntry{key, statement.Bytes(0), statement.Number(1)};
}

absl::StatusOr<std::vector<StoreEntry>> SqliteStore::List(const std::string& prefix, int limit) {
  const std::string end = PrefixEnd(prefix);
  MutexLock lock(&mutex_);
  Statement statement(database_, end.empty()
                                     ? "SELECT key, value, mod_revision FROM entries"
                                       " WHERE key >= ?1 ORDER BY key LIMIT ?3"
                                     : "SELECT key, value, mod_revision FROM entries"
                                       " WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3");
  statement.BindText(1, prefix);
  if (!end.empty()) statement.BindText(2, end);
  statement.BindNumber(3, limit);
  std::vector<StoreEntry> found;
  int code;
  while ((code = statement.Step()) == SQLITE_ROW) {
    found.push_back(StoreEntry{statement.Bytes(0), statement.Bytes(1), statement.Number(2)});
  }
  if (code != SQLITE_DONE) return Error(code, "list");
  return found;
}

absl::StatusOr<int64_t> SqliteStore::Commit(const Transaction& transaction) {
  HF_RETURN_IF_ERROR(CheckTransaction(transaction));
  const absl::Time start = options_.clock->Now();
  absl::StatusOr<int64_t> revision = [&] {
    MutexLock lock(&mutex_);
    return CommitLocked(transaction);
  }();
  if (options_.on_commit) options_.on_commit(options_.clock->Now() - start);
  return revision;
}

absl::StatusOr<int64_t> SqliteStore::CommitLocked(const Transaction& transaction) {
  // A deferred transaction would ignore the busy timeout when it turns into a writer.
  HF_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::StatusOr<int64_t> revision = Write(transaction);
  if (revision.ok()) {
    const absl::Status committed = Execute("COMMIT");
    if (!committed.ok()) revision = committed;
  }
  if (!revision.ok() && sqlite3_get_autocommit(database_) == 0) {
    Execute("ROLLBACK").IgnoreError();
  }
  return revision;
}

absl::StatusOr<int64_t> SqliteStore::Write(const Transaction& transaction) {
  for (const auto& compare : transaction.compares) {
    HF_ASSIGN_OR_RETURN(const int64_t revision, ModRevision(compare.key));
    if (revision != compare.mod_revision) {
      return absl::AbortedError(absl::StrCat("'", compare.key, "' is at revision ", revision,
                                             ", expected ", compare.mod_revision));
    }
  }
  HF_RETURN_IF_ERROR(Execute("UPDATE counter SET revision = revision + 1 WHERE id = 1"));
  HF_ASSIGN_OR_RETURN(const int64_t revision, Number("SELECT revision FROM counter WHERE id = 1"));
  for (const auto& put : transaction.puts) {
    Statement statement(database_, "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)");
    statement.BindText(1, put.key);
    statement.BindBlob(2, put.value);
    statement.BindNumber(3, revision);
    const int code = statement.Step();
    if (code != SQLITE_DONE) return Error(code, "write");
  }
  for (const auto& key : transaction.deletes) {
    Statement statement(database_, "DELETE FROM entries WHERE key = ?");
    statement.BindText(1, key);
    const int code = statement.Step();
    if (code != SQLITE_DONE) return Error(code, "delete");
  }
  return revision;
}

absl::Status SqliteStore::Execute(const char* sql) {
  const int code = sqlite3_exec(database_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, sql);
}

absl::StatusOr<int64_t> SqliteStore::Number(const char* sql) {
  Statement statement(database_, sql);
  const int code = statement.Step();
  if (code != SQLITE_ROW) return Error(code, sql);
  return statement.Number(0);
}

absl::StatusOr<int64_t> SqliteStore::ModRevision(const std::string& key) {
  Statement statement(database_, "SELECT mod_revision FROM entries WHERE key = ?");
  statement.BindText(1, key);
  const int code = statement.Step();
  if (code == SQLITE_DONE) return int64_t{0};
  if (code != SQLITE_ROW) return Error(code, "compare");
  return statement.Number(0);
}

absl::Status SqliteStore::Error(int code, const std::string& doing) const {
  const std::string text =
      absl::StrCat(path_, ": ", sqlite3_errstr(code), " (", doing.substr(0, 40), ")");
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(
          absl::StrCat(text, "; it was left as it is: restore a backup or move it away"));
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
      return absl::PermissionDeniedError(
          absl::StrCat(text, "; let this user read and write it, or name another directory"));
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(absl::StrCat(text, "; make room on its disk"));
    default:
      return absl::UnavailableError(text);
  }
}

}  // namespace hyperframes
