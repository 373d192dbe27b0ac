// A process of an all-reduce by Open MPI, for ../sync_benchmark.py. The script
// starts it by mpirun.
//
//   openmpi_sync BYTES WARM_UP REPEATS
//
// The output has the format of gloo_sync.cc.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static double CpuSeconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static long long PeakBytes(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024LL;
}

int main(int argc, char** argv) {
  int rank, processes;
  MPI_Init(&argc, &argv);
  if (argc != 4) {
    fprintf(stderr, "usage: see the top of openmpi_sync.c\n");
    return 2;
  }
  const int elements = (int)(strtoull(argv[1], NULL, 10) / sizeof(float));
  const int warm_up = atoi(argv[2]);
  const int repeats = atoi(argv[3]);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  double* times = malloc((size_t)repeats * sizeof(double));
  float* values = malloc((size_t)elements * sizeof(float));
  for (int i = 0; i < elements; ++i) values[i] = (float)(rank + 1);
  MPI_Barrier(MPI_COMM_WORLD);
  const double cpu = CpuSeconds();
  for (int round = 0; round < warm_up + repeats; ++round) {
    const double start = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, values, elements, MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    const double seconds = MPI_Wtime() - start;
    if (round == 0) {
      const float sum = (float)(processes * (processes + 1) / 2);
      for (int i = 0; i < elements; ++i) {
        if (values[i] != sum) {
          fprintf(stderr, "the sum is wrong\n");
          MPI_Abort(MPI_COMM_WORLD, 1);
        }
        // Repeated sums would overflow soon.
        values[i] = 0.0f;
      }
    }
    if (round >= warm_up) times[round - warm_up] = seconds;
  }
  const double used = CpuSeconds() - cpu;
  // Only rank 0 prints, because mpirun mixes the output of several processes.
  const double own[2] = {used, (double)PeakBytes()};
  double* all = malloc(2 * (size_t)processes * sizeof(double));
  MPI_Gather(own, 2, MPI_DOUBLE, all, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  for (int i = 0; rank == 0 && i < repeats; ++i) {
    printf("time %.9f\n", times[i]);
  }
  for (int i = 0; rank == 0 && i < processes; ++i) {
    printf("process %.6f %.0f\n", all[2 * i], all[2 * i + 1]);
  }
  MPI_Finalize();
  return 0;
}
