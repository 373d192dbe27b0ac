#include "common/base/identity.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"

namespace nereus {

std::string ProcessName() {
  // A computer without a name is called localhost.
  char host[256] = "localhost";
  if (gethostname(host, sizeof(host)) != 0) host[0] = '\0';
  host[sizeof(host) - 1] = '\0';
  return absl::StrCat(host[0] == '\0' ? "localhost" : host, ":", getpid());
}

std::string UniqueName() {
  static std::atomic<int> count{0};
  const int number = ++count;
  return number == 1 ? ProcessName() : absl::StrCat(ProcessName(), ".", number);
}

// The kernel draws the id at random when it starts.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  return file >> id ? id : "";
}

// A namespace has a file in /proc. The file's inode number identifies it.
uint64_t NetworkNamespace() {
  struct stat info = {};
  if (stat("/proc/self/ns/net", &info) != 0) return 0;
  return info.st_ino;
}

uint64_t DrawUniqueId() {
  uint64_t id = 0;
  // A call of getrandom gives all of up to 256 bytes, or fails.
  const ssize_t drawn = getrandom(&id, sizeof(id), 0);
  NEREUS_CHECK(drawn == sizeof(id)) << "getrandom gave " << drawn << " bytes";
  return id;
}

}  // namespace nereus
