#include "common/transport/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Name of the memory, which /proc shows.
constexpr char kName[] = "nereus";
// Bytes before the usable memory; they begin with the token.
constexpr size_t kPage = 4096;
// Seals of the memory: no process can change its length, not even the creator.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Returns the error for a system call that has failed, from errno.
absl::Status Cannot(absl::string_view what) {
  return UnavailableError("shared memory: ", what, ": ", std::strerror(errno));
}

uint64_t DrawToken() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// True if the descriptor at `path` has the name of memory from Create. This is
// no proof, because any process can give its memory this name.
bool IsNamedSo(const std::string& path) {
  std::array<char, 64> target = {};
  const ssize_t length =
      readlink(path.c_str(), target.data(), target.size() - 1);
  return length > 0 &&
         absl::StartsWith(target.data(), absl::StrCat("/memfd:", kName));
}

}  // namespace

SharedMemory::SharedMemory(Descriptor descriptor, uint8_t* mapping,
                           size_t mapped, const SharedMemoryOffer& offer)
    : descriptor_(std::move(descriptor)),
      offer_(offer),
      mapping_(mapping),
      mapped_(mapped),
      data_(mapping + kPage) {}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      offer_(other.offer_),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(other.mapped_),
      data_(other.data_) {}

SharedMemory::~SharedMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

absl::StatusOr<SharedMemory> SharedMemory::Map(Descriptor descriptor,
                                               size_t bytes,
                                               const SharedMemoryOffer& offer) {
  void* const mapping = mmap(nullptr, kPage + bytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED, descriptor.get(), 0);
  if (mapping == MAP_FAILED) return Cannot("mmap");
  return SharedMemory(std::move(descriptor), static_cast<uint8_t*>(mapping),
                      kPage + bytes, offer);
}

absl::StatusOr<SharedMemory> SharedMemory::Create(size_t bytes) {
  Descriptor descriptor(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return Cannot("memfd_create");
  const auto length = static_cast<off_t>(kPage + bytes);
  if (ftruncate(descriptor.get(), length) != 0) return Cannot("ftruncate");
  if (fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0) return Cannot("seal");
  const SharedMemoryOffer offer = {getpid(), descriptor.get(), DrawToken()};
  SharedMemory memory = NEREUS_TRY(Map(std::move(descriptor), bytes, offer));
  std::memcpy(memory.mapping_, &offer.token, sizeof(offer.token));
  return memory;
}

absl::StatusOr<SharedMemory> SharedMemory::Open(const SharedMemoryOffer& offer,
                                                size_t bytes) {
  const std::string path =
      absl::StrCat("/proc/", offer.process, "/fd/", offer.descriptor);
  // Checks the name before the file is opened. The path comes from a stranger
  // and may be that of a device: opening some devices has effects.
  if (!IsNamedSo(path)) {
    return UnavailableError(
        "shared memory: ", path,
        " is not visible to this process, or is not memory of Nereus");
  }
  Descriptor descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor.valid()) return Cannot(path);
  struct stat found = {};
  if (fstat(descriptor.get(), &found) != 0) return Cannot(path);
  // Checks the seals. Without them the other process could shorten the memory,
  // and the kernel would kill this process when it touches the rest.
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (found.st_size != static_cast<off_t>(kPage + bytes) || seals < 0 ||
      (seals & kSeals) != kSeals) {
    return InvalidArgumentError("shared memory: ", path, " has ", found.st_size,
                                " bytes and seals ", seals, ", must have ",
                                kPage + bytes, " and ", kSeals);
  }
  SharedMemory memory = NEREUS_TRY(Map(std::move(descriptor), bytes, offer));
  // Compares the token: by now the other process may use the descriptor's
  // number for other memory.
  uint64_t token = 0;
  std::memcpy(&token, memory.mapping_, sizeof(token));
  if (token != offer.token) {
    return InvalidArgumentError("shared memory: ", path,
                                " belongs to another offer");
  }
  return memory;
}

}  // namespace nereus
