// C interface of the worker client, for C, Go, Rust, Julia, Python and every
// other language that can call C. docs/c_api.md has an example and says how
// Nereus works; worker/public/client.h says more about each call.
//
// Conventions:
//   Results    Functions that can fail return a nereus_code. The text of a
//              failed call is then in nereus_last_error, on the same thread.
//              For calls with a client it is also in nereus_client_error.
//   Structs    All but nereus_setting begin with `size`, which the caller sets
//              to sizeof the struct. Zero in another field that the library
//              reads means the default, if the field has one. A newer library
//              accepts the shorter structs of older callers. An older library
//              accepts the longer structs of newer callers if all fields that
//              the library does not know are zero.
//   Texts      Texts are UTF-8 and end with NUL. The library does not keep the
//              caller's texts after the call. Functions that return a text
//              write at most `capacity` bytes, NUL included, and set *length to
//              the text's length without NUL. If *length >= capacity, the text
//              was cut.
//   Timeouts   Timeouts are in milliseconds. With a negative one only the
//              limits of Nereus itself hold, such as round_timeout_ms. A call
//              that timed out returns NEREUS_DEADLINE_EXCEEDED: make the same
//              call again, which goes on waiting. A caller that handles signals
//              (Ctrl-C) repeats the call with a timeout of about 100 ms.
//   Threads    Any thread may make any call. nereus_client_close waits until
//              the client's other calls have returned. No function calls code
//              of the caller.
//   Clients    A call with a client or lobby that is NULL or closed returns
//              NEREUS_INVALID_ARGUMENT.
//   fork       In a process that was forked after its parent's first
//              nereus_client_connect or nereus_lobby_enter, calls return
//              NEREUS_FAILED_PRECONDITION, and the close functions do nothing.
//   Exit       When the process exits, the library closes all open lobbies, and
//              all open clients, except those on which another thread is in a
//              call.
//   Memory     If memory runs out, the library ends the process. No C++
//              exception leaves this library.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NEREUS_API __attribute__((visibility("default")))

// Version of this header. It grows when functions or fields are added.
#define NEREUS_ABI_VERSION 4

// Outcome of a call. Client in worker/public/client.h says what the caller does
// about each outcome. The values never change.
typedef int32_t nereus_code;
enum {
  NEREUS_OK = 0,
  NEREUS_CANCELLED = 1,  // This process counts as dead: close, connect again.
  NEREUS_UNKNOWN = 2,
  NEREUS_INVALID_ARGUMENT = 3,   // Correct the call.
  NEREUS_DEADLINE_EXCEEDED = 4,  // The timeout has passed: call again.
  NEREUS_NOT_FOUND = 5,
  NEREUS_ALREADY_EXISTS = 6,
  NEREUS_PERMISSION_DENIED = 7,
  NEREUS_RESOURCE_EXHAUSTED = 8,
  NEREUS_FAILED_PRECONDITION = 9,  // Correct the caller, or the job.
  NEREUS_ABORTED = 10,
  NEREUS_OUT_OF_RANGE = 11,  // The job has gone back: begin a step.
  NEREUS_UNIMPLEMENTED = 12,
  NEREUS_INTERNAL = 13,
  NEREUS_UNAVAILABLE = 14,
  NEREUS_DATA_LOSS = 15,
  NEREUS_UNAUTHENTICATED = 16
};

// Handle of a worker in a job. The caller must not dereference it.
typedef struct nereus_client nereus_client;

// Handle of a process in its lobby, which gathers with the processes that were
// started together with it before it joins the job. The caller must not
// dereference it.
typedef struct nereus_lobby nereus_lobby;

// Memory that has the layers' values.
enum {
  NEREUS_MEMORY_HOST = 0,
  NEREUS_MEMORY_CUDA = 1  // Memory of a GPU; needs libnereus_cuda.so.
};

// Place where the caller expects the job's optimizer to run.
enum {
  NEREUS_OPTIMIZER_SERVER = 0,  // The job updates the parameters.
  NEREUS_OPTIMIZER_WORKER = 1,  // The caller updates them from the means.
  NEREUS_OPTIMIZER_ANY = 2      // Either: nereus_client_traits says which.
};

// Value that must be equal on all workers of a job, such as {"batch", "32"}.
typedef struct nereus_setting {
  const char* name;
  const char* value;
} nereus_setting;

// Options of a client (ClientOptions in worker/public/client_options.h).
typedef struct nereus_client_options {
  uint32_t size;                    // sizeof(nereus_client_options).
  int32_t optimizer;                // A NEREUS_OPTIMIZER_ constant.
  const char* coordinator_address;  // "host:port". Required.
  const char* job;                  // Name of the job. NULL: "default".
  const char* name;                 // Name of this worker. NULL: "host:pid".
  const char* host;                // Own address for others. NULL: "127.0.0.1".
  const char* node;                // Name of the host. NULL: none is given.
  int32_t control_port;            // Port for health checks. 0: a free port.
  int32_t data_port;               // Port for other members. 0: a free port.
  const nereus_setting* settings;  // Array of settings_count settings.
  int32_t settings_count;
  int32_t without_shared_memory;  // 1: frames never go through shared memory.
  int32_t means_apart;            // 1: ClientOptions::means_in_place is false.
  int32_t memory;                 // A NEREUS_MEMORY_ constant.
  int64_t connect_timeout_ms;     // 0: 60 seconds.
  int64_t round_timeout_ms;       // 0: 10 minutes.
  int64_t stall_threshold_ms;     // 0: 5 seconds.
  int32_t device;                 // Number of the GPU.
  int32_t scales_loss;            // 1: ClientOptions::scales_loss is true.
  int64_t staging_bytes;          // GpuOptions::staging_bytes.
  const char* listen;             // Address to listen at. NULL: `host`.
  int32_t http_port;              // Port for metrics over HTTP. 0: none.
  int32_t without_state;  // 1: ClientOptions::optimizer_has_state is false.
  int32_t has_rank;       // 1: `rank` is ClientOptions::rank.
  int32_t rank;           // Number that the launcher gave this process.
  // Folder of a device that other jobs use, too (ShareOptions in
  // worker/public/client_options.h). NULL: the device is not shared.
  const char* share;
  double share_weight;           // Share of the job in the device. 0: 1.
  int64_t share_limit_ms;        // 0: 2 seconds.
  int64_t share_memory_bytes;    // Memory of the device. 0: unknown.
  int64_t share_resident_bytes;  // Memory that this worker keeps. 0: unknown.
  int64_t share_turn_bytes;      // Memory that it needs besides in its turn.
  int32_t share_with_group;      // 1: the folder belongs to a group.
  int32_t share_is_optional;     // 1: trains without turns if it must.
} nereus_client_options;

// Kind of a layer.
enum {
  NEREUS_LAYER_VECTOR = 0,  // Normalisation, lone biases, anything else.
  NEREUS_LAYER_FULLY_CONNECTED = 1,
  NEREUS_LAYER_CONVOLUTION = 2,
  NEREUS_LAYER_EMBEDDING = 3
};

// Layer of the model, and the memory of its values (LayerSpec in
// common/plan/layer_spec.h, LayerBinding in worker/public/client.h). The memory
// must stay until the client is closed.
typedef struct nereus_layer {
  uint32_t size;             // sizeof(nereus_layer), the same for all layers.
  int32_t kind;              // A NEREUS_LAYER_ constant.
  const char* name;          // Unique within the model.
  int64_t m;                 // Rows of the matrix: outputs.
  int64_t n;                 // Columns of the matrix: inputs.
  int64_t parameters_count;  // m * n, plus the values beside the matrix.
  // Rows of its input, on one worker in one step. With has_factors also 0: not
  // known yet, see nereus_client_set_factor_rows.
  int64_t rows;
  int32_t has_factors;   // 1: nereus_client_push_factors may push it.
  int32_t state_arrays;  // Number of arrays at `state`.
  float* parameters;     // parameters_count values.
  float* state;          // State of the caller's optimizer, or NULL.
  int32_t on_host;       // 1: host memory, in a client of a GPU.
  int32_t reserved;      // 0.
} nereus_layer;

// Step of the job (StepInfo in worker/public/client.h).
typedef struct nereus_step {
  uint32_t size;     // sizeof(nereus_step), set by the caller.
  int32_t position;  // Index of this worker among `workers`, by rank.
  int64_t step;      // Number of the step.
  int32_t workers;
  int32_t local_position;  // Index among the step's workers on this host.
  int32_t local_workers;
  // Factor by which the caller multiplies the loss: see scales_loss.
  float loss_scale;
  // This worker's examples begin at number (contributions_before + position) *
  // B, if each worker takes B examples in a step.
  int64_t contributions_before;
  int32_t went_back;     // 1: StepInfo::went_back is true.
  int32_t should_leave;  // 1: call nereus_client_leave_early now.
} nereus_step;

// Properties of the job (JobTraits in worker/public/client.h).
typedef struct nereus_traits {
  uint32_t size;               // sizeof(nereus_traits), set by the caller.
  int32_t rank;                // Number of this worker, unique in the job.
  int32_t updates_parameters;  // 1: the caller runs the optimizer.
  int32_t unused;              // Always 0.
  int32_t may_skip;            // 1: the job skips steps with a NaN.
  int32_t sparse;              // 1: only a part of each gradient travels.
  int32_t uses_adam;           // 1: adam or adamw; 0: sgd or nesterov.
  float learning_rate;
  float momentum;
  float weight_decay;
  float beta1;
  float beta2;
  float epsilon;
  int32_t reserved;
} nereus_traits;

// Matrices whose product is a layer's weight gradient (Factors in
// worker/public/client.h), each row-major.
typedef struct nereus_factors {
  uint32_t size;                   // sizeof(nereus_factors).
  int32_t reserved;                // 0.
  const float* output_gradient;    // rows x m, see nereus_client_factor_rows.
  int64_t output_gradient_length;  // Number of values.
  const float* input;              // rows x n.
  int64_t input_length;            // Number of values.
} nereus_factors;

// ---- The library.

// Returns NEREUS_ABI_VERSION of the library. A program whose header has a
// higher version runs with this library, too, but must not call functions that
// the library lacks.
NEREUS_API int32_t nereus_abi_version(void);
// Returns the version of Nereus, such as "0.2.0".
NEREUS_API const char* nereus_version(void);
// Returns the text of this thread's last failed call; "" before the first.
// Valid until this thread's next call. Some languages (Go) can continue a
// program on another thread after a call: there, fix the thread, or use
// nereus_client_error.
NEREUS_API const char* nereus_last_error(void);

// ---- Log lines. They go to standard error unless the caller collects them.

enum {
  NEREUS_LOG_DEBUG = 0,
  NEREUS_LOG_INFO = 1,  // The default level.
  NEREUS_LOG_WARNING = 2,
  NEREUS_LOG_ERROR = 3
};
// Drops lines below `level`, a NEREUS_LOG_ constant.
NEREUS_API nereus_code nereus_set_log_level(int32_t level);
// Keeps the last `lines_max` lines for nereus_next_log_line, instead of writing
// them to standard error. With 0, later lines go to standard error again.
NEREUS_API nereus_code nereus_collect_log(int32_t lines_max);
// Takes the oldest collected line. NEREUS_NOT_FOUND: there is none. If lines
// were lost, because the caller took them too slowly, an extra line says how
// many. If the text was cut, the next call returns the rest of the line. With a
// `capacity` of 0 the call takes nothing of the line, and only sets *level and
// *length.
NEREUS_API nereus_code nereus_next_log_line(int32_t* level, char* text,
                                            int64_t capacity, int64_t* length);

// ---- A client. `stream` is the CUDA stream (a cudaStream_t) that orders the
// call with the GPU's work, as in worker/public/gpu.h. It is NULL for a
// client of host memory.

// Begins to join a job and returns at once, with the client in *client.
// `layers`: all layers in forward order. Their memory is used until the client
// is closed.
NEREUS_API nereus_code nereus_client_connect(
    const nereus_client_options* options, const nereus_layer* layers,
    int32_t layer_count, void* stream, nereus_client** client);
// Waits until the client has joined and has written the job's parameters. Until
// this function has returned NEREUS_OK, all functions below but
// nereus_client_error and nereus_client_close return
// NEREUS_FAILED_PRECONDITION. Here NEREUS_OUT_OF_RANGE means that the job has
// finished: nothing is left to do.
NEREUS_API nereus_code nereus_client_wait_connected(nereus_client* client,
                                                    int64_t timeout_ms,
                                                    void* stream);
// Writes the text of the client's last failed call, on whatever thread it was.
NEREUS_API nereus_code nereus_client_error(nereus_client* client, char* text,
                                           int64_t capacity, int64_t* length);
// Writes the properties of the job to *traits.
NEREUS_API nereus_code nereus_client_traits(nereus_client* client,
                                            nereus_traits* traits);
// Begins the next step and describes it in *step.
NEREUS_API nereus_code nereus_client_begin_step(nereus_client* client,
                                                int64_t timeout_ms,
                                                void* stream,
                                                nereus_step* step);
// Contributes `gradient` of a layer, `length` values, which the client uses
// until the wait for the layer returns. If the caller runs the optimizer, the
// client then writes the mean gradient to this memory (for the exception see
// means_apart). A layer with factors may be pushed so, too, if the step has
// more rows than the layer: other workers may push factors in the same step.
NEREUS_API nereus_code nereus_client_push(nereus_client* client, int32_t layer,
                                          int64_t step, float* gradient,
                                          int64_t length, void* stream);
// Contributes the factors of a layer that has factors. They must have as many
// rows as the layer or, if it was bound with 0 rows, as the job has learnt.
// `gradient`: memory of `length` values for the mean gradient. In host memory,
// and if the job runs the optimizer, `gradient` may be NULL, with a length of
// 0.
NEREUS_API nereus_code nereus_client_push_factors(nereus_client* client,
                                                  int32_t layer, int64_t step,
                                                  const nereus_factors* factors,
                                                  float* gradient,
                                                  int64_t length, void* stream);
// Tells the job what the caller has seen of its layers' factors: `count`
// numbers, one for each layer. A number of rows; 0: nothing is known, or the
// layer has no factors; -1: the gradient of the layer is no product of factors
// any more. A caller that joined with rows 0 calls this before the last push of
// its first step: the next step can then go by factors. Calls add up: -1 stays,
// and of two numbers the larger one counts. See Client::SetFactorRows.
NEREUS_API nereus_code nereus_client_set_factor_rows(nereus_client* client,
                                                     const int64_t* rows,
                                                     int32_t count);
// Sets *rows to the number of rows that the layer's factors must have if the
// plan sends them in this step. Otherwise sets *rows to 0: a caller that has
// the gradient may as well push it. Call this after nereus_client_begin_step.
NEREUS_API nereus_code nereus_client_factor_rows(nereus_client* client,
                                                 int32_t layer, int64_t* rows);
// Waits until round `step` of a layer is done. Afterwards the pushed memory
// belongs to the caller again. The text of NEREUS_DEADLINE_EXCEEDED names what
// is missing.
NEREUS_API nereus_code nereus_client_wait(nereus_client* client, int32_t layer,
                                          int64_t step, int64_t timeout_ms,
                                          void* stream);
// Waits for the last pushed round of a layer. The caller calls this before the
// layer's next forward pass.
NEREUS_API nereus_code nereus_client_wait_forward(nereus_client* client,
                                                  int32_t layer,
                                                  int64_t timeout_ms,
                                                  void* stream);
// Waits for round `step` of all layers.
NEREUS_API nereus_code nereus_client_wait_all(nereus_client* client,
                                              int64_t step, int64_t timeout_ms,
                                              void* stream);
// Sets *mean to the layer's mean gradient, which is valid until the layer's
// next push. There is a mean only if the caller runs the optimizer, has host
// memory, and has waited for the layer. NEREUS_FAILED_PRECONDITION: there is no
// mean.
NEREUS_API nereus_code nereus_client_mean(nereus_client* client, int32_t layer,
                                          const float** mean, int64_t* length);
// Sets *skipped to 1 if the job skipped `step` because of a NaN.
NEREUS_API nereus_code nereus_client_skipped(nereus_client* client,
                                             int64_t step, int32_t* skipped);
// Takes the turn at the device that this worker shares with other jobs, for
// computing outside of a step, such as an evaluation, and keeps it until
// nereus_client_give_turn. At most one such turn at a time. Takes nothing if
// the device is not shared.
NEREUS_API nereus_code nereus_client_take_turn(nereus_client* client,
                                               int64_t timeout_ms);
// Gives the turn of nereus_client_take_turn back, if there is one.
NEREUS_API nereus_code nereus_client_give_turn(nereus_client* client);
// Says what memory of the shared device this worker keeps, and what it needs
// besides in its turn, in bytes, in place of share_resident_bytes and
// share_turn_bytes. Does nothing if the device is not shared.
// NEREUS_INVALID_ARGUMENT: a number is negative or above 2^50.
NEREUS_API nereus_code nereus_client_set_device_memory(nereus_client* client,
                                                       int64_t resident_bytes,
                                                       int64_t turn_bytes);
// Requests a checkpoint of the next step that no worker has begun.
NEREUS_API nereus_code nereus_client_checkpoint(nereus_client* client);
// Collects one value from each worker: `length` bytes, at most 64 KiB. Callers
// can use this as a barrier, or to average a few numbers. Sets *count to the
// number of values. All workers must call this equally often between two steps.
// After NEREUS_DEADLINE_EXCEEDED, make the same call again.
NEREUS_API nereus_code nereus_client_gather(nereus_client* client,
                                            const void* value, int64_t length,
                                            int64_t timeout_ms, int32_t* count);
// Writes value `index` that the last nereus_client_gather has collected; the
// values are in the order of nereus_step.position. Writes at most `capacity`
// bytes of the value, and sets *length to the length of the whole value.
NEREUS_API nereus_code nereus_client_gathered(nereus_client* client,
                                              int32_t index, void* value,
                                              int64_t capacity,
                                              int64_t* length);
// Writes the costs of layers, traffic and measurements as JSON (docs/c_api.md).
NEREUS_API nereus_code nereus_client_report_json(nereus_client* client,
                                                 char* text, int64_t capacity,
                                                 int64_t* length);
// Ends the job for all workers. Returns NEREUS_FAILED_PRECONDITION with
// `reason`, or the error that had ended the job before.
NEREUS_API nereus_code nereus_client_abort(nereus_client* client,
                                           const char* reason);
// Leaves the job after the last pushed step. After a timeout the caller may
// call only nereus_client_leave, nereus_client_error and nereus_client_close.
// NEREUS_UNAVAILABLE: other workers still work, and the coordinator has been
// silent for round_timeout_ms, in this call or in several.
NEREUS_API nereus_code nereus_client_leave(nereus_client* client,
                                           int64_t timeout_ms, void* stream);
// Leaves a job that is not done and goes on without this worker, because of
// nereus_step.should_leave or because the process was asked to end. After a
// timeout as nereus_client_leave.
NEREUS_API nereus_code nereus_client_leave_early(nereus_client* client,
                                                 int64_t timeout_ms,
                                                 void* stream);
// Frees a client. If the client has not left, the job takes this worker for
// dead. Afterwards the layers' memory belongs to the caller. Does nothing if
// the client is NULL.
NEREUS_API void nereus_client_close(nereus_client* client);

// ---- A lobby (Lobby in worker/public/lobby.h).

// Makes a lobby of `count` processes, in *lobby, and returns at once.
// options->rank is the number of this process, and has_rank must be 1; of the
// other options, `coordinator_address`, `job` and `connect_timeout_ms` are
// used.
NEREUS_API nereus_code nereus_lobby_enter(const nereus_client_options* options,
                                          int32_t count, nereus_lobby** lobby);
// Collects one value from each process: `length` bytes, at most 64 KiB. Sets
// *count to the number of values. All processes must call this equally often,
// at most 64 times. A process that is started again gets the values that the
// first processes gathered. After NEREUS_DEADLINE_EXCEEDED, whose text names
// the missing processes, make the same call again: the value of the first call
// counts. NEREUS_UNAVAILABLE: no coordinator has answered for
// connect_timeout_ms. NEREUS_OUT_OF_RANGE: the job has finished.
// NEREUS_FAILED_PRECONDITION: the job has another number of workers, or the
// processes do not gather equally often.
NEREUS_API nereus_code nereus_lobby_gather(nereus_lobby* lobby,
                                           const void* value, int64_t length,
                                           int64_t timeout_ms, int32_t* count);
// Writes value `index` that the last nereus_lobby_gather has collected; the
// values are in the order of the processes' numbers. Writes at most `capacity`
// bytes of the value, and sets *length to the length of the whole value.
NEREUS_API nereus_code nereus_lobby_gathered(nereus_lobby* lobby, int32_t index,
                                             void* value, int64_t capacity,
                                             int64_t* length);
// Frees a lobby, before the process joins the job. Does nothing if `lobby` is
// NULL. If another thread is in nereus_lobby_gather, that call returns
// NEREUS_FAILED_PRECONDITION.
NEREUS_API void nereus_lobby_close(nereus_lobby* lobby);

#ifdef __cplusplus
}  // extern "C"
#endif
