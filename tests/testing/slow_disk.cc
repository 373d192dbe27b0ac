// Functions of the C library that wait for a disk, with a disk that hangs. A
// test links this library, and its definitions take the place of the C
// library's, also for SQLite. Or a program is started with it (LD_PRELOAD).
//
// The environment variable SLOW_DISK names a file. While the file has a line
//
//   OPERATION TEXT
//
// no call of OPERATION on a path that contains TEXT returns. OPERATION: fsync
// (also fdatasync), pread, rename or link. With "no-link" or "no-renameat2" in
// place of OPERATION, the calls fail as on a file system that has none.

#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

constexpr useconds_t kPoll = 10'000;

// Returns the C library's own function.
template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool Hangs(const std::string& operation, const std::string& path) {
  std::ifstream lines(getenv("SLOW_DISK"));
  std::string of, text;
  while (lines >> of >> text) {
    if (of == operation && path.find(text) != std::string::npos) return true;
  }
  return false;
}

void Await(const char* operation, const std::string& path) {
  if (getenv("SLOW_DISK") == nullptr) return;
  while (Hangs(operation, path)) usleep(kPoll);
}

bool Refuses(const char* operation, const char* path) {
  return getenv("SLOW_DISK") != nullptr && Hangs(operation, path);
}

void Await(const char* operation, int fd) {
  if (getenv("SLOW_DISK") == nullptr) return;
  std::array<char, 4096> path;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path.data(), path.size());
  if (length > 0) Await(operation, std::string(path.data(), length));
}

}  // namespace

extern "C" {

int fsync(int fd) {
  Await("fsync", fd);
  return Next<int(int)>("fsync")(fd);
}

int fdatasync(int fd) {
  Await("fsync", fd);
  return Next<int(int)>("fdatasync")(fd);
}

ssize_t pread(int fd, void* into, size_t bytes, off_t offset) {
  Await("pread", fd);
  return Next<ssize_t(int, void*, size_t, off_t)>("pread")(fd, into, bytes,
                                                           offset);
}

ssize_t pread64(int fd, void* into, size_t bytes, off64_t offset) {
  Await("pread", fd);
  return Next<ssize_t(int, void*, size_t, off64_t)>("pread64")(fd, into, bytes,
                                                               offset);
}

int link(const char* from, const char* to) {
  Await("link", std::string(to));
  if (Refuses("no-link", to)) {
    errno = EPERM;
    return -1;
  }
  return Next<int(const char*, const char*)>("link")(from, to);
}

int renameat2(int from_fd, const char* from, int to_fd, const char* to,
              unsigned int flags) {
  if (Refuses("no-renameat2", to)) {
    errno = EINVAL;
    return -1;
  }
  return Next<int(int, const char*, int, const char*, unsigned int)>(
      "renameat2")(from_fd, from, to_fd, to, flags);
}

int rename(const char* from, const char* to) {
  Await("rename", std::string(to));
  return Next<int(const char*, const char*)>("rename")(from, to);
}

}  // extern "C"
