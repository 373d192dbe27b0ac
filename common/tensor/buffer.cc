#include "common/tensor/buffer.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "common/base/logging.h"

namespace nereus {
namespace {

// Least alignment of allocated memory, in bytes: that of a cache line and of
// the widest vector of a CPU.
constexpr size_t kAlignment = 64;

// Memory of kHugeBytes or more is aligned to huge pages, and Linux is asked to
// use huge pages for it. Linux does so if its setting transparent_hugepage is
// "madvise" or "always". A pass over a tensor that is larger than the caches
// then needs one address translation for each 2 MiB, instead of each 4 KiB.
constexpr size_t kHugePage = 2 << 20;
constexpr size_t kHugeBytes = 4 * kHugePage;

// Returns memory that std::free frees.
uint8_t* AllocateBytes(size_t bytes) {
  void* data = nullptr;
  const size_t alignment = bytes >= kHugeBytes ? kHugePage : kAlignment;
  if (posix_memalign(&data, alignment, bytes) != 0) throw std::bad_alloc();
  // A failure is ignored: the memory works without huge pages.
  if (bytes >= kHugeBytes) {
    (void)madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  }
  return static_cast<uint8_t*>(data);
}

}  // namespace

// Memory that one or more buffers share. The memory is either owned, and freed
// with the last reference, or borrowed.
struct Buffer::Storage {
  std::atomic<int64_t> references{1};  // Number of buffers that share it.
  uint8_t* owned = nullptr;            // Allocated memory; null if borrowed.
  // Called when the last reference to borrowed memory is gone; may be empty.
  std::function<void()> released;
  // First byte of borrowed memory. The arrival counts its bytes from here.
  uint8_t* begin = nullptr;
  // Progress of borrowed memory that is still being written, or null. Shared
  // with the code that writes the memory.
  std::shared_ptr<Arrival> arrival;
};

Buffer::Buffer(Storage* storage, uint8_t* data, int64_t bytes)
    : storage_(storage), data_(data), bytes_(bytes) {}

Buffer Buffer::Allocate(int64_t bytes) {
  NEREUS_CHECK(bytes >= 0) << bytes;
  auto* storage = new Storage;
  storage->owned = AllocateBytes(static_cast<size_t>(bytes));
  return Buffer(storage, storage->owned, bytes);
}

Buffer Buffer::AllocateZeroed(int64_t bytes) {
  Buffer buffer = Allocate(bytes);
  std::memset(buffer.data(), 0, static_cast<size_t>(bytes));
  return buffer;
}

Buffer Buffer::AllocateLike(const Buffer& model, int64_t bytes) {
  return model.data() == nullptr ? SizeOnly(bytes) : AllocateZeroed(bytes);
}

Buffer Buffer::Borrow(void* data, int64_t bytes, std::function<void()> released,
                      std::shared_ptr<Arrival> arrival) {
  auto* storage = new Storage;
  storage->released = std::move(released);
  storage->begin = static_cast<uint8_t*>(data);
  storage->arrival = std::move(arrival);
  return Buffer(storage, static_cast<uint8_t*>(data), bytes);
}

Buffer Buffer::View(void* data, int64_t bytes) {
  return Buffer(nullptr, static_cast<uint8_t*>(data), bytes);
}

Buffer Buffer::SizeOnly(int64_t bytes) {
  return Buffer(nullptr, nullptr, bytes);
}

Buffer::Buffer(const Buffer& other)
    : storage_(other.storage_), data_(other.data_), bytes_(other.bytes_) {
  if (storage_ != nullptr) {
    // Relaxed is enough: the caller has a reference already.
    storage_->references.fetch_add(1, std::memory_order_relaxed);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : storage_(std::exchange(other.storage_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer other) noexcept {
  std::swap(storage_, other.storage_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (storage_ == nullptr) return;
  // Release: all that this holder did with the bytes happens before the
  // decrement. Acquire, here and in references(): the last holder then sees all
  // that the other holders did.
  if (storage_->references.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  if (storage_->owned != nullptr) {
    std::free(storage_->owned);
  }
  // Drops the arrival before the memory is released, because the arrival's
  // destructor may wait for a copy into the memory.
  storage_->arrival.reset();
  if (storage_->released) storage_->released();
  delete storage_;
}

Buffer Buffer::Slice(int64_t offset, int64_t bytes) const {
  NEREUS_CHECK(offset >= 0 && bytes >= 0 && offset <= bytes_ - bytes)
      << "slice [" << offset << ", +" << bytes << ") of " << bytes_ << " bytes";
  Buffer slice(*this);
  if (slice.data_ != nullptr) slice.data_ += offset;
  slice.bytes_ = bytes;
  return slice;
}

bool Buffer::IsThere() const {
  return storage_ == nullptr || storage_->arrival == nullptr || bytes_ == 0 ||
         storage_->arrival->IsThere(data_ + bytes_ - storage_->begin);
}

absl::Status Buffer::Await() const {
  if (storage_ == nullptr || storage_->arrival == nullptr || bytes_ == 0) {
    return absl::OkStatus();
  }
  return storage_->arrival->Await(data_ + bytes_ - storage_->begin);
}

void Buffer::AwaitUnread() const {
  if (storage_ != nullptr && storage_->arrival != nullptr) {
    storage_->arrival->AwaitUnread();
  }
}

Buffer Buffer::AsBfloat16() const {
  if (storage_ == nullptr || storage_->arrival == nullptr) return Buffer();
  const Buffer* const all = storage_->arrival->bfloat16();
  return all == nullptr ? Buffer()
                        : all->Slice((data_ - storage_->begin) / 2, bytes_ / 2);
}

int64_t Buffer::references() const {
  return storage_ == nullptr
             ? 0
             : storage_->references.load(std::memory_order_acquire);
}

}  // namespace nereus
