// Tests jobs of workers that have their layers in a GPU's memory, with real
// servers in the same process. On an emulated GPU, ThreadSanitizer finds
// accesses that streams and events do not order.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gate.h"
#include "tests/gpu/gpu_toy_worker.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/toy_worker.h"
#include "worker/public/gpu.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using GpuClientTest = NeedsGpu<testing::Test>;

std::deque<GpuToyWorker> Workers(int count,
                                 const std::vector<LayerSpec>& layers) {
  std::deque<GpuToyWorker> workers;
  for (int i = 0; i < count; ++i) workers.emplace_back(layers);
  return workers;
}

TEST_F(GpuClientTest, ReplicasOnAGpuAndACpuStayEqual) {
  for (const OptimizerPlace place :
       {OptimizerPlace::kServer, OptimizerPlace::kWorker}) {
    ServerOptions options = GpuJob(2, 1);
    options.spec.options.optimizer_place = place;
    options.spec.rules.forced = Scheme::kServer;
    LocalCluster cluster(options);
    GpuToyWorker gpu;
    ToyWorker cpu(SmallModel());
    const auto results = cluster.RunWorkers(2, [&](int i) {
      return i == 0 ? gpu.Train(cluster.client_options(), 10)
                    : cpu.Train(cluster.client_options(), 10);
    });
    ASSERT_TRUE(AllOk(results));
    EXPECT_EQ(gpu.parameters(), cpu.parameters());
  }
}

TEST_F(GpuClientTest, WorkersWithDifferentMultipliersAreRefused) {
  ServerOptions options = GpuJob(1, 1);
  options.spec.max_workers = 2;
  LocalCluster cluster(options);
  ToyWorker cpu(SmallModel());
  ASSERT_TRUE(cpu.Connect(cluster.client_options()).ok());
  GpuToyWorker gpu;
  const absl::Status refused = gpu.Connect(cluster.client_options());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("multiplies factors on"), HasSubstr("\"cpu\""),
                    HasSubstr("--scheme=server")));
}

// A gate stops the worker's stream. Neither Push nor the Wait for another layer
// may wait for this stream. The step before the gate pins memory and loads
// kernels, because both would wait for the stream. The gradients are made
// before the gate, too, because a copy from memory that is not pinned would
// also wait.
TEST_F(GpuClientTest, GradientNotYetComputedDelaysNoOtherLayer) {
  LocalCluster cluster(GpuJob(1, 1));
  GpuToyWorker worker;
  ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
  ASSERT_TRUE(worker.NextStep().ok());
  const auto begun = worker.client()->BeginStep(worker.stream());
  ASSERT_TRUE(begun.ok()) << begun.status();
  for (int layer = 0; layer < 3; ++layer) worker.Make(layer, *begun);
  ASSERT_TRUE(worker.PushAsItIs(2, begun->step).ok());
  Gate gate(worker.stream());
  ASSERT_TRUE(worker.PushAsItIs(1, begun->step).ok());
  ASSERT_TRUE(worker.PushAsItIs(0, begun->step).ok());
  cudaStream_t other = nullptr;
  NEREUS_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  const absl::Status waited = worker.client()->Wait(2, begun->step, other);
  EXPECT_TRUE(waited.ok()) << waited;
  NEREUS_CUDA(cudaStreamSynchronize(other));
  NEREUS_CUDA(cudaStreamDestroy(other));
  gate.Open();
  EXPECT_TRUE(worker.client()->WaitAll(begun->step, worker.stream()).ok());
}

// A program may capture a stream for a CUDA graph. The client refuses calls on
// this stream, and its threads do not spoil the capture.
TEST_F(GpuClientTest, CallsOnACapturedStreamAreRefusedAndTheCaptureGoesOn) {
  LocalCluster cluster(GpuJob(1, 1));
  GpuToyWorker worker;
  ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
  ASSERT_TRUE(worker.NextStep().ok());
  cudaStream_t captured = nullptr;
  NEREUS_CUDA(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
  NEREUS_CUDA(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
  const std::vector<absl::Status> refused = {
      worker.client()->BeginStep(captured).status(),
      worker.client()->Push(0, 1, worker.gradient(0), captured),
      worker.client()->Wait(0, 0, captured),
  };
  for (const absl::Status& status : refused) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("is being captured for a CUDA graph"));
  }
  // Does a step on another stream during the capture. It pushes the gradients
  // of the step before, because the test's copies that make gradients would
  // spoil the capture.
  const auto begun = worker.client()->BeginStep(worker.stream());
  ASSERT_TRUE(begun.ok()) << begun.status();
  for (int layer = 2; layer >= 0; --layer) {
    ASSERT_TRUE(worker.PushAsItIs(layer, begun->step).ok());
  }
  EXPECT_TRUE(worker.client()->WaitAll(begun->step, worker.stream()).ok());
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess);
  if (graph != nullptr) NEREUS_CUDA(cudaGraphDestroy(graph));
  NEREUS_CUDA(cudaStreamDestroy(captured));
}

// Neither the product of the factors nor the parameters leave the GPU.
TEST_F(GpuClientTest, LayersByFactorsAreUpdatedOnTheGpu) {
  ServerOptions options = GpuJob(2, 1);
  options.spec.rules.forced = Scheme::kFactor;
  LocalCluster cluster(options);
  const LayerSpec layer = {"fc", LayerKind::kFullyConnected, 64, 64, 64 * 65, 4,
                           true};
  std::deque<GpuToyWorker> workers = Workers(2, {layer});
  const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
    GpuToyWorker& worker = workers[i];
    NEREUS_TRY(worker.Connect(cluster.client_options()));
    NEREUS_TRY(worker.NextStep().status());
    const ClientReport before = worker.client()->Report();
    for (int step = 0; step < 5; ++step) {
      NEREUS_TRY(worker.NextStep().status());
    }
    const ClientReport after = worker.client()->Report();
    EXPECT_EQ(after.bytes_copied_in, before.bytes_copied_in);
    EXPECT_EQ(after.bytes_copied_out - before.bytes_copied_out,
              5 * 4 * (64 + 64) * 4);
    return worker.client()->Leave(worker.stream());
  });
  EXPECT_TRUE(AllOk(results));
  EXPECT_EQ(workers[0].parameters(), workers[1].parameters());
}

// If the plan sends bfloat16 and the host needs no float32, gradients are
// copied to the host as bfloat16: half the bytes.
TEST_F(GpuClientTest, GradientsLeaveAsBfloat16) {
  std::map<std::pair<Scheme, WireType>, int64_t> bytes;
  for (const Scheme scheme : {Scheme::kServer, Scheme::kRing}) {
    for (const WireType wire : {WireType::kFloat32, WireType::kBfloat16}) {
      ServerOptions options = GpuJob(2, 1);
      options.spec.rules.forced = scheme;
      options.spec.rules.wire = wire;
      LocalCluster cluster(options);
      std::vector<GpuToyWorker> workers(2);
      const auto results = cluster.RunWorkers(2, [&](int i) {
        return workers[i].Train(cluster.client_options_on(i), 4);
      });
      ASSERT_TRUE(AllOk(results));
      bytes[{scheme, wire}] = workers[0].client()->Report().bytes_copied_out;
      EXPECT_GT(workers[0].client()->Report().bytes_copied_in, 0);
    }
  }
  int64_t model = 0;
  for (const LayerSpec& layer : SmallModel()) model += layer.parameters * 4;
  // The parameters are copied once, then four gradients. On a ring, and if
  // several workers share a host, the host needs the gradients as float32.
  // There the GPU updates the parameters, so at the end the host also gets
  // parameters and state, to compare replicas.
  EXPECT_EQ((bytes[{Scheme::kServer, WireType::kFloat32}]), 5 * model);
  EXPECT_EQ((bytes[{Scheme::kServer, WireType::kBfloat16}]), 3 * model);
  EXPECT_EQ((bytes[{Scheme::kRing, WireType::kBfloat16}]), 7 * model);
}

// Blocks that are held back are copied neither to the host nor to the GPU.
TEST_F(GpuClientTest, OnlyTravellingBlocksAreCopied) {
  constexpr int64_t kBlock = 1 << 15;
  constexpr int64_t kLayerBytes = 16 * kBlock * 4;
  const std::vector<LayerSpec> layers = {
      {"v", LayerKind::kVector, 1, 16 * kBlock, 16 * kBlock, 1}};
  for (const Scheme scheme : {Scheme::kServer, Scheme::kRing}) {
    ServerOptions options = GpuJob(2, 1);
    options.spec.rules.forced = scheme;
    options.spec.options.sparsity.share = 0.75;
    options.spec.options.sparsity.block_elements = kBlock;
    options.spec.options.sparsity.dense_steps = 2;
    LocalCluster cluster(options);
    GpuToyWorker gpu(layers);
    ToyWorker cpu(layers);
    const auto results = cluster.RunWorkers(2, [&](int i) {
      return i == 0 ? gpu.Train(cluster.client_options(), 10)
                    : cpu.Train(cluster.client_options(), 10);
    });
    ASSERT_TRUE(AllOk(results));
    EXPECT_EQ(gpu.parameters(), cpu.parameters());
    // The host gets the parameters before the first step, all blocks in two
    // steps, and a quarter of the blocks in eight steps. On a ring the GPU has
    // the optimizer's state. The state is copied to the GPU before the first
    // step, and to the host at the end, with the parameters.
    const int state = scheme == Scheme::kRing ? 1 : 0;
    const ClientReport staged = gpu.client()->Report();
    EXPECT_EQ(staged.bytes_copied_out, (1 + 2 + 2 + 2 * state) * kLayerBytes);
    EXPECT_LE(staged.bytes_copied_in, (1 + 2 + 2 + state) * kLayerBytes);
    EXPECT_GE(staged.bytes_copied_in, (2 + 2) * kLayerBytes);
  }
}

// The optimizer has momentum and weight decay. The norms of the blocks differ
// much, so the choice does not depend on the order of additions.
TEST_F(GpuClientTest, BlocksHeldOnAGpuEqualBlocksHeldOnACpu) {
  constexpr int64_t kBlock = 1000;
  constexpr int64_t kElements = 7 * kBlock + 500;
  ServerOptions options = GpuJob(1, 1);
  options.spec.options.sparsity.share = 0.7;
  options.spec.options.sparsity.block_elements = kBlock;
  options.spec.options.sparsity.dense_steps = 2;
  options.spec.options.optimizer = {.momentum = 0.9f, .weight_decay = 0.01f};
  const LayerSpec layer = {"v", LayerKind::kVector, 1, kElements, kElements, 1};
  const auto gradient_of = [](int64_t step) {
    std::vector<float> gradient(kElements);
    for (int64_t i = 0; i < kElements; ++i) {
      gradient[i] = 0.37f * static_cast<float>(1 + i / kBlock) *
                    (static_cast<float>((i * 7 + step) % 11) - 4.9f);
    }
    return gradient;
  };
  constexpr int64_t kSteps = 12;
  std::vector<float> on_cpu(kElements, 1.0f);
  {
    LocalCluster cluster(options);
    const auto client = Client::Connect(cluster.client_options(),
                                        {{layer, absl::MakeSpan(on_cpu)}});
    ASSERT_TRUE(client.ok()) << client.status();
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_TRUE((*client)->BeginStep().ok());
      std::vector<float> gradient = gradient_of(step);
      ASSERT_TRUE((*client)->Push(0, step, absl::MakeSpan(gradient)).ok());
      ASSERT_TRUE((*client)->WaitAll(step).ok());
    }
    ASSERT_TRUE((*client)->Leave().ok());
  }
  LocalCluster cluster(options);
  GpuToyWorker worker({layer});
  ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
  Client& client = *worker.client();
  for (int64_t step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(client.BeginStep(worker.stream()).ok());
    const DeviceArray<float> gradient(gradient_of(step));
    ASSERT_TRUE(client.Push(0, step, gradient.span(), worker.stream()).ok());
    ASSERT_TRUE(client.WaitAll(step, worker.stream()).ok());
  }
  ASSERT_TRUE(client.Leave(worker.stream()).ok());
  EXPECT_EQ(worker.parameters()[0], on_cpu);
}

// For example, an embedding may be too large for the GPU.
TEST_F(GpuClientTest, LayersMayStayOnTheHost) {
  const LayerSpec layers[] = {
      {"embedding", LayerKind::kFullyConnected, 8, 16, 8 * 16, 4},
      {"rest", LayerKind::kVector, 1, 100, 100, 1}};
  struct Kind {
    OptimizerPlace place;
    Scheme scheme;
    double sparsity = 0.0;
  };
  constexpr auto kServer = OptimizerPlace::kServer;
  constexpr auto kWorker = OptimizerPlace::kWorker;
  for (const auto& [place, scheme, sparsity] :
       {Kind{kServer, Scheme::kServer}, Kind{kServer, Scheme::kRing},
        Kind{kWorker, Scheme::kServer}, Kind{kWorker, Scheme::kRing},
        Kind{kServer, Scheme::kServer, 0.5},
        Kind{kServer, Scheme::kRing, 0.5}}) {
    ServerOptions options = GpuJob(2, 1);
    options.spec.rules.forced = scheme;
    options.spec.options.optimizer_place = place;
    options.spec.options.sparsity.share = sparsity;
    options.spec.options.optimizer = {.learning_rate = 1.0f, .momentum = 0.0f};
    LocalCluster cluster(options);
    const auto results =
        cluster.RunWorkers(2, [&, place = place](int) -> absl::Status {
          std::vector<float> embedding(8 * 16, 1.0f);
          std::vector<float> gradient(8 * 16, 2.0f);
          const DeviceArray<float> rest(std::vector<float>(100, 1.0f));
          const DeviceArray<float> rest_gradient(std::vector<float>(100, 2.0f));
          cudaStream_t stream = nullptr;
          NEREUS_CUDA(
              cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
          const auto client = NEREUS_TRY(
              ConnectOnGpu(cluster.client_options(), {},
                           {{.spec = layers[0],
                             .parameters = absl::MakeSpan(embedding),
                             .on_host = true},
                            {.spec = layers[1], .parameters = rest.span()}},
                           stream));
          const StepInfo begun = NEREUS_TRY(client->BeginStep(stream));
          NEREUS_TRY(client->Push(1, begun.step, rest_gradient.span(), stream));
          NEREUS_TRY(
              client->Push(0, begun.step, absl::MakeSpan(gradient), stream));
          NEREUS_TRY(client->WaitAll(begun.step, stream));
          NEREUS_CUDA(cudaStreamSynchronize(stream));
          if (place == OptimizerPlace::kServer) {
            EXPECT_EQ(embedding, std::vector<float>(8 * 16, -1.0f));
            EXPECT_EQ(rest.Read(), std::vector<float>(100, -1.0f));
          } else {
            EXPECT_EQ(gradient, std::vector<float>(8 * 16, 2.0f));
            EXPECT_EQ(rest_gradient.Read(), std::vector<float>(100, 2.0f));
          }
          const absl::Status left = client->Leave(stream);
          NEREUS_CUDA(cudaStreamDestroy(stream));
          return left;
        });
    EXPECT_TRUE(AllOk(results));
  }
}

// Each chunk is copied to the GPU as soon as its result has arrived.
TEST_F(GpuClientTest, LargeLayersLandInParts) {
  constexpr int64_t kCount = (int64_t{5} << 18) + 3;  // Two chunks and a half.
  const std::vector<LayerSpec> model = {
      {"large", LayerKind::kVector, 1, kCount, kCount, 1}};
  for (const OptimizerPlace place :
       {OptimizerPlace::kServer, OptimizerPlace::kWorker}) {
    ServerOptions options = GpuJob(1, 2);
    options.spec.rules.forced = Scheme::kServer;
    options.spec.options.optimizer_place = place;
    options.spec.options.chunk_bytes = kChunkBytesMax;
    LocalCluster cluster(options);
    GpuToyWorker worker(model);
    GpuOptions gpu;
    gpu.timeline = true;
    ASSERT_TRUE(worker.Connect(cluster.client_options(), gpu).ok());
    const int64_t bytes_before = worker.client()->Report().bytes_copied_in;
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(worker.NextStep().ok());
    EXPECT_EQ(worker.client()->Report().bytes_copied_in - bytes_before,
              4 * kCount * 4);
    const auto spans = worker.client()->Timeline();
    ASSERT_TRUE(spans.ok()) << spans.status();
    EXPECT_EQ(absl::c_count_if(*spans,
                               [](const GpuSpan& span) {
                                 return span.kind == GpuSpan::Kind::kCopyIn;
                               }),
              4 * 3);
    ToyWorker cpu(model);
    LocalCluster again(options);
    ASSERT_TRUE(cpu.Connect(again.client_options()).ok());
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(cpu.NextStep().ok());
    EXPECT_EQ(worker.parameters(), cpu.parameters());
  }
}

TEST_F(GpuClientTest, NanOnAGpuIsNamed) {
  for (const double sparsity : {0.0, 0.5}) {
    ServerOptions options = GpuJob(1, 1);
    options.spec.options.sparsity.share = sparsity;
    LocalCluster cluster(options);
    GpuToyWorker worker;
    ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
    const auto begun = worker.client()->BeginStep(worker.stream());
    ASSERT_TRUE(begun.ok()) << begun.status();
    NEREUS_CUDA(cudaMemsetAsync(worker.gradient(0).data() + 777, 0xff, 4 * 1000,
                                worker.stream()));
    ASSERT_TRUE(worker.client()
                    ->Push(0, begun->step, worker.gradient(0), worker.stream())
                    .ok());
    const absl::Status waited =
        worker.client()->Wait(0, begun->step, worker.stream());
    EXPECT_THAT(std::string(waited.message()),
                AllOf(HasSubstr("layer conv"), HasSubstr("nan"),
                      HasSubstr("element 777")));
    // The next Push returns the same error.
    EXPECT_THAT(std::string(worker.client()
                                ->Push(0, begun->step, worker.gradient(0),
                                       worker.stream())
                                .message()),
                HasSubstr(std::string(waited.message())));
  }
}

TEST_F(GpuClientTest, InfinityOnAGpuSkipsTheStepForAllWorkers) {
  ServerOptions options = GpuJob(2, 1);
  options.spec.options.nan = NanPolicy::kSkip;
  LocalCluster cluster(options);
  const std::vector<LayerSpec> layers = {
      {"v", LayerKind::kVector, 1, 5000, 5000, 1}};
  std::deque<GpuToyWorker> workers = Workers(2, layers);
  const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
    GpuToyWorker& worker = workers[i];
    NEREUS_TRY(worker.Connect(cluster.client_options()));
    const auto before = worker.parameters();
    const StepInfo begun =
        NEREUS_TRY(worker.client()->BeginStep(worker.stream()));
    std::vector<float> gradient(5000, 1.0f);
    if (i == 1) gradient[4999] = std::numeric_limits<float>::infinity();
    const DeviceArray<float> on_gpu(gradient);
    NEREUS_TRY(
        worker.client()->Push(0, begun.step, on_gpu.span(), worker.stream()));
    NEREUS_TRY(worker.client()->WaitAll(begun.step, worker.stream()));
    EXPECT_TRUE(worker.client()->Skipped(begun.step));
    EXPECT_EQ(worker.parameters(), before);
    const StepInfo next = NEREUS_TRY(worker.NextStep());
    EXPECT_FALSE(worker.client()->Skipped(next.step));
    return worker.client()->Leave(worker.stream());
  });
  EXPECT_TRUE(AllOk(results));
}

// Pushes a gradient of ones with `value` at element 777 of the layer "conv".
// With `leaves`, leaves the job then; otherwise does 50 more steps. Returns the
// job's error.
absl::Status PushLarge(GpuToyWorker& worker, float value, bool leaves) {
  const StepInfo begun =
      NEREUS_TRY(worker.client()->BeginStep(worker.stream()));
  std::vector<float> gradient(210'000, 1.0f);
  gradient[777] = value;
  const DeviceArray<float> on_gpu(gradient);
  NEREUS_TRY(
      worker.client()->Push(0, begun.step, on_gpu.span(), worker.stream()));
  for (int layer = 2; layer > 0; --layer) {
    NEREUS_TRY(worker.Push(layer, begun));
  }
  NEREUS_TRY(worker.client()->WaitAll(begun.step, worker.stream()));
  if (leaves) return worker.client()->Leave(worker.stream());
  for (int step = 0; step < 50; ++step) {
    NEREUS_TRY(worker.NextStep().status());
  }
  return absl::OkStatus();
}

// Expects that each worker has an error with this text.
void ExpectAllSay(const std::vector<absl::Status>& results,
                  const std::string& text) {
  for (const absl::Status& result : results) {
    EXPECT_THAT(std::string(result.message()), HasSubstr(text));
  }
}

// The second moment of the large value is infinite; the parameter is finite.
// The step may be the last one.
TEST_F(GpuClientTest, UpdateOnAGpuThatOverflowsEndsTheJob) {
  for (const bool leaves : {true, false}) {
    ServerOptions options = GpuJob(2, 1);
    options.spec.rules.forced = Scheme::kRing;
    options.spec.options.optimizer.rule = UpdateRule::kAdam;
    LocalCluster cluster(options);
    const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
      GpuToyWorker worker;
      NEREUS_TRY(worker.Connect(cluster.client_options()));
      return PushLarge(worker, i == 1 ? 1e22f : 1.0f, leaves);
    });
    ExpectAllSay(results,
                 "layer conv, step 0: the update by the mean gradient of all "
                 "workers has a NaN or an infinity at element 777 of 210000");
  }
}

// Row 61 and column 125 of the gradient, 64 x 128, are the product of two large
// values. The job or the caller runs the optimizer.
TEST_F(GpuClientTest, ProductOnAGpuThatOverflowsEndsTheJob) {
  for (const OptimizerPlace place :
       {OptimizerPlace::kServer, OptimizerPlace::kWorker}) {
    ServerOptions options = GpuJob(2, 1);
    options.spec.rules.forced = Scheme::kFactor;
    options.spec.options.optimizer_place = place;
    LocalCluster cluster(options);
    const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
      GpuToyWorker worker(
          {{"fc", LayerKind::kFullyConnected, 64, 128, 64 * 128, 4, true}});
      NEREUS_TRY(worker.Connect(cluster.client_options()));
      Client& client = *worker.client();
      const StepInfo begun = NEREUS_TRY(client.BeginStep(worker.stream()));
      std::vector<float> output_gradient(4 * 64, 1.0f);
      std::vector<float> input(4 * 128, 1.0f);
      if (i == 1) output_gradient[61] = input[125] = 1e22f;
      const DeviceArray<float> on_output(output_gradient);
      const DeviceArray<float> on_input(input);
      NEREUS_TRY(client.PushFactors(0, begun.step,
                                    {on_output.span(), on_input.span()},
                                    worker.gradient(0), worker.stream()));
      NEREUS_TRY(client.WaitAll(begun.step, worker.stream()));
      return client.Leave(worker.stream());
    });
    const char* what = place == OptimizerPlace::kServer ? "update by the " : "";
    ExpectAllSay(results,
                 absl::StrCat("layer fc, step 0: the ", what,
                              "mean gradient of all workers has a NaN or an "
                              "infinity at element 7933 of 8192"));
  }
}

TEST_F(GpuClientTest, AbortEndsTheJobForAllWorkers) {
  LocalCluster cluster(GpuJob(2, 1));
  std::deque<GpuToyWorker> workers =
      Workers(2, {{"v", LayerKind::kVector, 1, 5000, 5000, 1}});
  const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
    NEREUS_TRY(workers[i].Connect(cluster.client_options()));
    if (i == 0) return workers[i].client()->Abort("the data are wrong");
    return workers[i].NextStep().status();
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kFailedPrecondition);
  for (const absl::Status& status : results) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("the data are wrong"));
  }
}

// The factors are larger than the gradient, so the pool of pinned memory grows.
TEST_F(GpuClientTest, RowsOfTheFirstStepMakeThePlanOfTheSecond) {
  constexpr int64_t kRows = 1000;
  ServerOptions options = GpuJob(2, 1);
  options.spec.rules.forced = Scheme::kFactor;
  LocalCluster cluster(options);
  std::deque<GpuToyWorker> workers = Workers(
      2, {{"fc", LayerKind::kFullyConnected, 100, 100, 10000, kRows, true}});
  const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
    GpuToyWorker& worker = workers[i];
    worker.set_learns_rows(true);
    NEREUS_TRY(worker.Connect(cluster.client_options()));
    Client& client = *worker.client();
    const StepInfo first = NEREUS_TRY(client.BeginStep(worker.stream()));
    // Factors that are refused before the client reads them.
    const auto factors_of = [&](int64_t rows) {
      const absl::Span<const float> matrix(worker.gradient(0).data(),
                                           static_cast<size_t>(rows * 100));
      return Factors{matrix, matrix};
    };
    EXPECT_EQ(*client.factor_rows(0), 0);
    const absl::Status early = client.PushFactors(
        0, first.step, factors_of(kRows), worker.gradient(0), worker.stream());
    EXPECT_THAT(std::string(early.message()),
                HasSubstr("before the job knows their rows"));
    NEREUS_TRY(worker.Push(0, first));
    NEREUS_TRY(client.WaitAll(first.step, worker.stream()));
    const StepInfo second = NEREUS_TRY(client.BeginStep(worker.stream()));
    EXPECT_EQ(*client.factor_rows(0), kRows);
    const absl::Status wrong =
        client.PushFactors(0, second.step, factors_of(kRows - 1),
                           worker.gradient(0), worker.stream());
    EXPECT_THAT(std::string(wrong.message()),
                HasSubstr("the factors have 999 rows, and factors of 1000"));
    NEREUS_TRY(worker.Push(0, second));
    NEREUS_TRY(client.WaitAll(second.step, worker.stream()));
    NEREUS_TRY(worker.NextStep().status());
    return client.Leave(worker.stream());
  });
  EXPECT_TRUE(AllOk(results));
  EXPECT_EQ(workers[0].parameters(), workers[1].parameters());
}

TEST_F(GpuClientTest, WrongMemoryIsNamed) {
  LocalCluster cluster(GpuJob(1, 1));
  GpuToyWorker worker;
  ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
  Client& client = *worker.client();
  const auto begun = client.BeginStep(worker.stream());
  ASSERT_TRUE(begun.ok()) << begun.status();
  const auto push = [&](int layer, float* gradient) {
    const absl::Status pushed =
        client.Push(layer, begun->step, {gradient, 300 * 700}, worker.stream());
    EXPECT_EQ(pushed.code(), absl::StatusCode::kInvalidArgument) << pushed;
    return std::string(pushed.message());
  };
  std::vector<float> host(10);
  EXPECT_THAT(push(0, host.data()), AllOf(HasSubstr("layer conv, gradient"),
                                          HasSubstr("not memory of a GPU")));
  EXPECT_THAT(push(0, nullptr), HasSubstr("layer conv, gradient is null"));
  EXPECT_THAT(
      push(0, reinterpret_cast<float*>(
                  reinterpret_cast<char*>(worker.gradient(0).data()) + 2)),
      HasSubstr("not aligned to 4 bytes"));
  float* freed = nullptr;
  NEREUS_CUDA(cudaMalloc(reinterpret_cast<void**>(&freed), 1 << 20));
  NEREUS_CUDA(cudaFree(freed));
  EXPECT_THAT(push(0, freed), HasSubstr("not memory of a GPU"));
  EXPECT_THAT(push(3, worker.gradient(0).data()), HasSubstr("no layer 3"));
  EXPECT_THAT(std::string(client
                              .PushFactors(0, begun->step, {host, host},
                                           worker.gradient(0), worker.stream())
                              .message()),
              HasSubstr("has no factors"));
  // The host client notices some mistakes only after Push has returned. Wait
  // returns these errors.
  ASSERT_TRUE(client.Push(0, 7, worker.gradient(0), worker.stream()).ok());
  EXPECT_THAT(std::string(client.Wait(0, 7, worker.stream()).message()),
              AllOf(HasSubstr("conv"), HasSubstr("7")));
}

TEST_F(GpuClientTest, WrongOptionsAreNamed) {
  LocalCluster cluster(GpuJob(1, 1));
  GpuToyWorker worker;
  std::vector<float> host(300 * 700);
  const auto refusal = [&](const GpuOptions& gpu,
                           std::vector<LayerBinding> layers) {
    const absl::Status status = ConnectOnGpu(cluster.client_options(), gpu,
                                             std::move(layers), worker.stream())
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  GpuOptions gpu;
  gpu.device = 99;
  EXPECT_THAT(refusal(gpu, worker.Bindings()), HasSubstr("GPU 99"));
  gpu.device = -1;
  EXPECT_THAT(refusal(gpu, worker.Bindings()), HasSubstr("device is -1"));
  gpu = {};
  gpu.staging_bytes = 1000;
  EXPECT_THAT(refusal(gpu, worker.Bindings()),
              AllOf(HasSubstr("staging_bytes is 1000"), HasSubstr("needs")));
  std::vector<LayerBinding> layers = worker.Bindings(/*with_state=*/true);
  layers[0].state = absl::MakeSpan(host);
  EXPECT_THAT(refusal({}, layers), AllOf(HasSubstr("layer conv, state"),
                                         HasSubstr("not memory of a GPU")));
  layers[0].state = {static_cast<float*>(nullptr), host.size()};
  EXPECT_THAT(refusal({}, layers),
              AllOf(HasSubstr("layer conv"), HasSubstr("null")));
  layers = worker.Bindings();
  layers[0].parameters = absl::MakeSpan(host);
  EXPECT_THAT(refusal({}, layers), AllOf(HasSubstr("layer conv, parameters"),
                                         HasSubstr("not memory of a GPU")));
}

// A pushed gradient belongs to the client until the Wait for its round.
TEST_F(GpuClientTest, SecondPushBeforeTheWaitIsRefused) {
  LocalCluster cluster(GpuJob(2, 1));
  std::vector<GpuToyWorker> workers(2);
  const auto connected = cluster.RunWorkers(
      2, [&](int i) { return workers[i].Connect(cluster.client_options()); });
  ASSERT_TRUE(AllOk(connected));
  GpuToyWorker& worker = workers[0];
  const auto begun = worker.client()->BeginStep(worker.stream());
  ASSERT_TRUE(begun.ok()) << begun.status();
  ASSERT_TRUE(worker.Push(0, *begun).ok());
  const absl::Status again = worker.client()->Push(
      0, begun->step, worker.gradient(0), worker.stream());
  EXPECT_EQ(again.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(again.message()),
              AllOf(HasSubstr("layer conv"), HasSubstr("before the Wait")));
}

// A caller checks cudaGetLastError for errors of its own work. An error of the
// client must not appear there.
TEST_F(GpuClientTest, ClientLeavesNoCudaErrorBehind) {
  LocalCluster cluster(GpuJob(1, 1));
  GpuToyWorker worker;
  ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(worker.NextStep().ok());
  std::vector<float> host(300 * 700);
  EXPECT_FALSE(
      worker.client()->Push(0, 5, absl::MakeSpan(host), worker.stream()).ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// A pushed layer waits for pinned memory. When the job goes back to a
// checkpoint, or fails, this wait ends and WaitAll returns an error.
TEST_F(GpuClientTest, JobThatGoesBackEndsWaitsForPinnedMemory) {
  struct Kind {
    bool fails = false;
    double sparsity = 0.0;
  };
  for (const auto& [fails, sparsity] :
       {Kind{false}, Kind{true}, Kind{false, 0.5}}) {
    ServerOptions options = GpuJob(2, 2);
    options.spec.options.checkpoint_every = fails ? 0 : 1;
    options.spec.options.sparsity.share = sparsity;
    options.spec.options.sparsity.block_elements = 32768;
    options.spec.options.sparsity.dense_steps = 1;
    if (!fails) {
      options.checkpoint_dir =
          absl::StrCat(testing::TempDir(), "/gpu_scarce_goes_back");
      std::filesystem::remove_all(options.checkpoint_dir);
    }
    LocalCluster cluster(options);
    GpuOptions gpu;
    gpu.staging_bytes = int64_t{5} << 18;
    std::deque<GpuToyWorker> workers =
        Workers(2, {{"a", LayerKind::kConvolution, 300, 700, 210'000, 1},
                    {"b", LayerKind::kConvolution, 300, 700, 210'000, 1}});
    const auto connected = cluster.RunWorkers(2, [&](int i) -> absl::Status {
      NEREUS_TRY(workers[i].Connect(cluster.client_options(), gpu));
      for (int step = 0; step < 3; ++step) {
        NEREUS_TRY(workers[i].NextStep().status());
      }
      return absl::OkStatus();
    });
    ASSERT_TRUE(AllOk(connected));
    // Worker 1 does not push, so the first pushed layer keeps its pinned
    // memory. The second pushed layer waits for this memory.
    GpuToyWorker& worker = workers[0];
    const auto begun = worker.client()->BeginStep(worker.stream());
    ASSERT_TRUE(begun.ok()) << begun.status();
    ASSERT_TRUE(worker.Push(1, *begun).ok());
    ASSERT_TRUE(worker.Push(0, *begun).ok());
    absl::SleepFor(absl::Milliseconds(20));
    cluster.Replace(1);  // Without a checkpoint the job fails.
    const absl::Time before = absl::Now();
    const absl::Status waited =
        worker.client()->WaitAll(begun->step, worker.stream());
    EXPECT_EQ(absl::IsOutOfRange(waited), !fails) << waited;
    EXPECT_FALSE(waited.ok());
    if (!fails) {
      const auto results = cluster.RunWorkers(2, [&](int i) -> absl::Status {
        absl::StatusOr<StepInfo> next;
        do {
          next = workers[i].NextStep();
        } while (absl::IsOutOfRange(next.status()));
        return next.status();
      });
      EXPECT_TRUE(AllOk(results));
      EXPECT_EQ(workers[0].parameters(), workers[1].parameters());
    }
    // No round has run into its timeout.
    EXPECT_LT(absl::Now() - before, cluster.client_options().round_timeout);
  }
}

}  // namespace
}  // namespace nereus
