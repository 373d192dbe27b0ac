#include "worker/gpu/device_factors.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_replace.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/compute/factor_gradient_cuda.h"
#include "common/device/cuda_status.h"
#include "common/device/device_scope.h"

namespace nereus {
namespace {

// Environment variables by which a user changes how cuBLAS computes float32
// products.
constexpr const char* kVariables[] = {"NVIDIA_TF32_OVERRIDE",
                                      "CUBLAS_EMULATION_STRATEGY",
                                      "CUBLAS_EMULATE_SINGLE_PRECISION"};
// Limit of a variable's value in the name, in bytes.
constexpr size_t kValueBytesMax = 32;

// Subject of messages about Multiply.
constexpr char kWhat[] = "product of all workers' factors";

// Alignment of cudaMalloc, in bytes.
constexpr int64_t kAlignment = 256;

// Rounds `bytes` up to a multiple of kAlignment.
int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceFactors>> DeviceFactors::Create(
    Stager* stager) {
  auto factors = std::shared_ptr<DeviceFactors>(new DeviceFactors(stager));
  NEREUS_TRY(factors->Start());
  return factors;
}

absl::Status DeviceFactors::Start() {
  const int device = stager_.device();
  const std::string what = absl::StrCat("GPU ", device);
  const DeviceScope scope(device, what);
  NEREUS_TRY(scope.status());
  {
    MutexLock lock(&own_mu_);
    own_ = NEREUS_TRY(CublasHandle::Create(device, what));
  }
  all_ = NEREUS_TRY(CublasHandle::Create(device, what));
  stream_ = NEREUS_TRY(Stager::MakeStream(what));
  NEREUS_TRY(CublasStatus(all_.SetStream(stream_), what, "cublasSetStream"));
  cudaDeviceProp properties = {};
  NEREUS_TRY(CudaStatus(cudaGetDeviceProperties(&properties, device), what,
                        "cudaGetDeviceProperties"));
  int version = 0;
  NEREUS_TRY(CublasStatus(cublasGetVersion(all_.get(), &version), what,
                          "cublasGetVersion"));
  name_ =
      absl::StrCat(absl::StrReplaceAll(
                       absl::NullSafeStringView(properties.name).substr(0, 128),
                       {{" ", "-"}}),
                   "/sm-", properties.major, properties.minor, "x",
                   properties.multiProcessorCount, "/cublas-", version);
  for (const char* const variable : kVariables) {
    const char* const value = std::getenv(variable);
    if (value == nullptr) continue;
    absl::StrAppend(&name_, "/", variable, "=",
                    absl::string_view(value).substr(0, kValueBytesMax));
  }
  return absl::OkStatus();
}

DeviceFactors::~DeviceFactors() {
  if (stream_ == nullptr) return;
  const DeviceScope scope(stager_.device(), "factors");
  const absl::Status ended = CudaStatus(cudaStreamSynchronize(stream_),
                                        "factors", "cudaStreamSynchronize");
  if (!ended.ok()) NEREUS_LOG(Error) << ended.message();
  (void)cudaStreamDestroy(stream_);
}

absl::Status DeviceFactors::MultiplyOwn(const LayerSpec& spec,
                                        const Factors& factors, float* gradient,
                                        cudaStream_t stream) {
  const std::string what =
      absl::StrCat("layer ", spec.name, ", product of factors");
  const DeviceScope scope(stager_.device(), what);
  NEREUS_TRY(scope.status());
  // A handle must not be used by two threads at once.
  MutexLock lock(&own_mu_);
  // Waits for the last product, which can be on another stream of the caller:
  // both products use the workspace of own_.
  NEREUS_TRY(stager_.Follow(what, stream, own_done_));
  NEREUS_TRY(CublasStatus(own_.SetStream(stream), what, "cublasSetStream"));
  NEREUS_TRY(CublasStatus(
      FactorGradientCuda(own_.get(), spec.rows, spec.m, spec.n,
                         /*bias=*/spec.parameters > spec.m * spec.n,
                         /*scale=*/1.0f, factors.output_gradient.data(),
                         factors.input.data(), gradient, stream),
      what, "cublasGemmEx"));
  own_done_ = NEREUS_TRY(stager_.Mark(what, stream));
  return absl::OkStatus();
}

absl::StatusOr<uint8_t*> DeviceFactors::Scratch(int64_t bytes) {
  if (bytes > scratch_.bytes()) {
    // Waits, because earlier products may still use the memory that is freed.
    NEREUS_TRY(CudaStatus(cudaStreamSynchronize(stream_), "factors",
                          "cudaStreamSynchronize"));
    scratch_ = DeviceMemory();
    scratch_ = NEREUS_TRY(DeviceMemory::Allocate(
        stager_.device(), "factors of all workers", bytes));
  }
  return static_cast<uint8_t*>(scratch_.data());
}

absl::Status DeviceFactors::AddTo(float* product, const Buffer& addend,
                                  float scale, uint8_t* scratch) {
  absl::Status status;
  for (int64_t at = 0; status.ok() && at < addend.bytes(); at += kAddendBytes) {
    const Buffer part =
        addend.Slice(at, std::min(kAddendBytes, addend.bytes() - at));
    status = CopyAsync(kWhat, scratch, part.data(), part.bytes(), stream_);
    status.Update(
        CudaStatus(AddScaledCuda(reinterpret_cast<const float*>(scratch),
                                 part.float_count(), scale, product, stream_),
                   kWhat, "AddScaledCuda"));
    product += part.float_count();
  }
  // Waits, because the owner of the addend reuses its memory after this call.
  status.Update(CudaStatus(cudaStreamSynchronize(stream_), kWhat,
                           "cudaStreamSynchronize"));
  return status;
}

absl::Status DeviceFactors::Multiply(const MultiplyFactors& factors) {
  const DeviceScope scope(stager_.device(), kWhat);
  NEREUS_TRY(scope.status());
  NEREUS_CHECK(factors.is_whole()) << "workers with GPUs do not share products";
  const int64_t output_bytes = factors.output_gradient.bytes();
  const int64_t input_bytes = factors.input.bytes();
  const int64_t gradient_bytes = factors.gradient.bytes();
  // The factors and a part of the addend share one allocation; each begins at a
  // multiple of kAlignment. If the gradient does not begin at such a multiple,
  // the product is made in this allocation, too, and then copied to the
  // gradient. The reason: cuBLAS chooses its kernel, and so the bits, by the
  // alignment.
  const int64_t input_at = Aligned(output_bytes);
  const int64_t addend_at = input_at + Aligned(input_bytes);
  const int64_t product_at = addend_at + kAddendBytes;
  const bool is_aligned =
      reinterpret_cast<uintptr_t>(factors.gradient.data()) % kAlignment == 0;
  uint8_t* const memory =
      NEREUS_TRY(Scratch(product_at + (is_aligned ? 0 : gradient_bytes)));
  auto* const output = reinterpret_cast<float*>(memory);
  auto* const input = reinterpret_cast<float*>(memory + input_at);
  auto* const product = is_aligned
                            ? factors.gradient.floats()
                            : reinterpret_cast<float*>(memory + product_at);
  absl::Status status = CopyAsync(kWhat, output, factors.output_gradient.data(),
                                  output_bytes, stream_);
  status.Update(
      CopyAsync(kWhat, input, factors.input.data(), input_bytes, stream_));
  absl::StatusOr<Stager::Point> copied = stager_.Mark(kWhat, stream_);
  status.Update(copied.status());
  if (!status.ok()) {
    // Waits, because a copy may still read the factors, and their owner reuses
    // that memory after this error.
    (void)cudaStreamSynchronize(stream_);
    return status;
  }
  const bool has_addend = factors.addend.bytes() > 0;
  status = CublasStatus(
      FactorGradientCuda(all_.get(), factors.rows, factors.m, factors.n,
                         factors.bias, has_addend ? 1.0f : factors.scale,
                         output, input, product, stream_),
      kWhat, "cublasGemmEx");
  if (has_addend) {
    status.Update(
        AddTo(product, factors.addend, factors.scale, memory + addend_at));
  }
  if (!is_aligned) {
    status.Update(CopyAsync(kWhat, factors.gradient.data(), product,
                            gradient_bytes, stream_));
  }
  // Waits for the copies of the factors, because their owner reuses the memory
  // after this call. Does not wait for the product: the work that reads it is
  // queued on in() behind it.
  status.Update(stager_.Await(kWhat, *copied));
  absl::StatusOr<Stager::Point> done = stager_.Mark(kWhat, stream_);
  status.Update(done.status());
  if (status.ok()) status = stager_.Follow(kWhat, stager_.in(), *done);
  return status;
}

}  // namespace nereus
