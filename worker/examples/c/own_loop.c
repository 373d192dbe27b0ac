// A training loop in C: fits y = 3 x + 1. The servers run the optimizer. Ctrl-C
// ends the program within a few tenths of a second: the program leaves the job
// after its current step, or gives up the call that waits.
//
//   nereus-server --servers=1 --workers=2 --control-port=7000 &
//   own_loop 127.0.0.1:7000 & own_loop 127.0.0.1:7000

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "nereus.h"

enum { kBatch = 4, kWaitMs = 100 };

static volatile sig_atomic_t interrupted = 0;

static void Interrupt(int number) {
  (void)number;
  interrupted = 1;
}

// Repeats `call`, which waits for kWaitMs at most, until it no longer times out
// or Ctrl-C was pressed.
#define AWAIT(code, call) \
  do {                    \
    (code) = (call);      \
  } while ((code) == NEREUS_DEADLINE_EXCEEDED && !interrupted)

// Does one step on `line`, {slope, intercept}.
static nereus_code DoStep(nereus_client* client, const nereus_step* step,
                          const float* line, float* gradient) {
  // Each worker takes its own part of the step's examples.
  const int64_t first = (step->contributions_before + step->position) * kBatch;
  float loss = 0.0f;
  nereus_code code;
  gradient[0] = gradient[1] = 0.0f;
  for (int64_t i = first; i < first + kBatch; ++i) {
    const float x = (float)(i % 7) - 3.0f;
    const float error = line[0] * x + line[1] - (3.0f * x + 1.0f);
    loss += error * error / 2 / kBatch;
    gradient[0] += error * x / kBatch;
    gradient[1] += error / kBatch;
  }
  if (step->step % 200 == 0) {
    printf("step %lld: loss %g\n", (long long)step->step, loss);
  }
  code = nereus_client_push(client, 0, step->step, gradient, 2, NULL);
  if (code != NEREUS_OK) return code;
  AWAIT(code, nereus_client_wait_all(client, step->step, kWaitMs, NULL));
  return code;
}

static nereus_code Train(nereus_client* client, long long steps,
                         const float* line, float* gradient) {
  nereus_step step = {0};
  nereus_code code;
  step.size = sizeof(step);
  AWAIT(code, nereus_client_wait_connected(client, kWaitMs, NULL));
  // Calls can return without a wait, and then AWAIT does not look at Ctrl-C. So
  // the loop does: after Ctrl-C the worker leaves.
  while (code == NEREUS_OK) {
    int is_done = interrupted;
    if (!is_done) {
      AWAIT(code, nereus_client_begin_step(client, kWaitMs, NULL, &step));
      if (code != NEREUS_OK) break;
      is_done = step.step >= steps;
    }
    if (is_done) {
      AWAIT(code, nereus_client_leave(client, kWaitMs, NULL));
      if (code == NEREUS_OK || interrupted) break;
    } else {
      code = DoStep(client, &step, line, gradient);
    }
    // The job has lost a server and gone back to its last checkpoint. The next
    // step begins with the parameters of that checkpoint.
    if (code == NEREUS_OUT_OF_RANGE) code = NEREUS_OK;
  }
  return code;
}

int main(int argc, char** argv) {
  // The model: y = line[0] * x + line[1]. The client uses this memory until the
  // client is closed.
  float line[2] = {0.0f, 0.0f};
  float gradient[2];
  nereus_client_options options = {0};
  const nereus_setting batch = {"batch", "4"};  // kBatch.
  nereus_layer layer = {0};
  nereus_client* client = NULL;
  nereus_code code;
  const long long steps = argc == 3 ? atoll(argv[2]) : 1000;
  if (argc < 2 || argc > 3 || steps < 1) {
    fprintf(stderr, "Usage: own_loop COORDINATOR_HOST:PORT [STEPS=1000]\n");
    return 2;
  }
  signal(SIGINT, Interrupt);
  setvbuf(stdout, NULL, _IOLBF, BUFSIZ);  // Shows each line at once.

  options.size = sizeof(options);
  options.coordinator_address = argv[1];
  options.settings = &batch;
  options.settings_count = 1;
  layer.size = sizeof(layer);
  layer.kind = NEREUS_LAYER_VECTOR;
  layer.name = "line";
  layer.m = 1;
  layer.n = 2;
  layer.parameters_count = 2;
  layer.rows = kBatch;
  layer.parameters = line;

  code = nereus_client_connect(&options, &layer, 1, NULL, &client);
  if (code == NEREUS_OK) code = Train(client, steps, line, gradient);
  if (code != NEREUS_OK) {
    fprintf(stderr, "error %d: %s\n", (int)code, nereus_last_error());
  }
  nereus_client_close(client);
  if (code != NEREUS_OK) return 1;
  printf("y = %.2f x + %.2f\n", line[0], line[1]);
  return 0;
}
