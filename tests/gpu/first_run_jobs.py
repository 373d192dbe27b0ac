"""Steps of first_run.py that run whole jobs: training, replays of models, experiments."""

import json
import os
import re
import statistics
import time

from first_run_machine import finish, memory_used, stop
from first_run_programs import json_lines, run_tests
from first_run_table import at_least, at_most, equals

JOB_PARTS = ["jobs on the GPU against jobs on the CPU", "4 workers on one GPU",
             "copies beside computing", "memory of the GPU after the jobs"]
REPLAY_PARTS = ["resnet-50", "vgg19"]
EXPERIMENT_PARTS = ["two runs of one factor job", "CUDA_DEVICE_MAX_CONNECTIONS",
                    "one worker with CUBLAS_WORKSPACE_CONFIG"]

ACCURACY_DIFFERENCE = 0.02
MEMORY_MIB = 2  # Largest growth of the memory in use, from before the jobs to after them.
# Smallest percent of the time of copies to the host in which the GPU computes. Copies of the last
# layers' results to the GPU come after the backward pass, so nothing can hide them.
HIDDEN_PERCENT = 80  # In training, which has small layers.
HIDDEN_OUT_PERCENT = 95  # In a replay.

# Two numbers for each model: the seconds of computing in a step of 64 images, about those of an
# H100; and the milliseconds that a step may take longer on a GPU than on the CPU.
MODELS = {"resnet-50": (0.030, 1), "vgg19": (0.080, 10)}
BATCH = 64
# Model of emulated replays: a table of layers as in docs/models.md.
SMALL_MODEL = """name,kind,m,n,parameters,rows_per_sample
conv,conv,32,288,9248,16
fc1,fc,256,1024,262400,1
fc2,fc,10,256,2570,1
"""


class JobFailed(Exception):
    """A job did not end well; the message says how."""


def train(machine, options, name, flags, limit_s=90):
    """Runs `nereusctl local` and returns its report."""
    control = machine.program("server/admin/nereusctl")
    if not control or not machine.worker():
        raise JobFailed("nereusctl or nereus-worker is not here")
    report = os.path.join(options.out, f"job_{name}.json")
    if os.path.exists(report):
        os.remove(report)
    usual = (["--model=mlp", "--limit=2000", "--epochs=2"] if machine.emulated
             else [f"--epochs={2 if options.quick else 4}"])
    if options.data:
        usual.append(f"--data={options.data}")
    given = {flag.split("=")[0] for flag in flags}
    usual = [flag for flag in usual if flag.split("=")[0] not in given]
    outcome = machine.run(
        [control, "local", f"--json={report}",
         f"--server-binary={machine.program('server/nereus-server')}",
         f"--worker-binary={machine.worker()}", *usual, *flags], limit_s)
    if outcome.code != 0 or not os.path.exists(report):
        raise JobFailed(f"exit code {outcome.code} after {outcome.seconds:.0f} s; see "
                        "first_run.log")
    with open(report, encoding="utf-8") as file:
        return json.load(file)


def variants(machine, options):
    """Name and flags of each job that is trained twice: on a GPU and on a CPU."""
    known = {"optimizer=server": ["--optimizer=server"],
             "optimizer=worker": ["--optimizer=worker"],
             "factors, optimizer=worker": ["--scheme=factor", "--optimizer=worker"],
             "factors, optimizer=server": ["--scheme=factor", "--optimizer=server"],
             "ring": ["--scheme=ring"], "bf16": ["--wire=bf16"]}
    count = 6 if not options.quick else 2 if machine.emulated else 3
    return list(known.items())[:count]


def compare_with_cpu(machine, table, options, name, flags):
    two = ["--workers=2", "--servers=2", *flags]
    label = re.sub(r"[^a-z0-9]+", "_", name)
    on_gpu = train(machine, options, label + "_gpu", [*two, "--device=cuda:0"])
    table.add("jobs", f"{name}: replicas equal", on_gpu["replicas_equal"], "", equals(True))
    on_cpu = train(machine, options, label + "_cpu", [*two, "--device=cpu"])
    accuracies = [report["test_accuracy"] for report in (on_gpu, on_cpu)]
    table.add("jobs", f"{name}: accuracy, difference from the CPU's",
              abs(accuracies[0] - accuracies[1]), "", at_most(ACCURACY_DIFFERENCE),
              f"{accuracies[0]:.4f} on the GPU, {accuracies[1]:.4f} on the CPU")


def compare_speed(machine, table, options):
    """Compares the speeds of jobs with one worker, because several workers on one GPU take
    turns."""
    one = ["--workers=1", "--servers=1"]
    rates = {device: train(machine, options, "one_" + device.split(":")[0],
                           [*one, f"--device={device}"])["images_per_second"]
             for device in ("cuda:0", "cpu")}
    table.add("jobs", "one worker: rate against the CPU's", rates["cuda:0"] / rates["cpu"],
              "times", at_least(1),
              f"{rates['cuda:0']:.0f} and {rates['cpu']:.0f} images/s", speed=True)


def share_four(machine, table, options):
    report = train(machine, options, "four",
                   ["--workers=4", "--servers=2", "--device=cuda:0"], 120)
    what = "MNIST" if options.data else "generated images"
    table.add("jobs", "4 workers on one GPU: replicas equal", report["replicas_equal"], "",
              equals(True), f"{what}, accuracy {report['test_accuracy']:.4f}, "
              f"{report['images_per_second']:.0f} images/s")


class Cluster:
    """Servers and workers of one job. A context manager: all processes have ended after the
    with block."""

    def __init__(self, machine, servers, workers, job_flags, limit_s):
        self.machine = machine
        self.counts = servers, workers
        self.job_flags = job_flags
        self.limit_s = limit_s
        self.servers = []
        self.workers = []  # Process and output file of each worker.
        self.log_begin = os.path.getsize(machine.log)

    def __enter__(self):
        server = self.machine.program("server/nereus-server")
        if not server or not self.machine.worker():
            raise JobFailed("nereus-server or nereus-worker is not here")
        self.server = server
        return self

    def __exit__(self, *_):
        for process, _ in self.workers:
            stop(process)
        for process in self.servers:
            stop(process)

    def log_text(self):
        with open(self.machine.log, "rb") as log:
            log.seek(self.log_begin)
            return log.read().decode(errors="replace")

    def start_servers(self):
        """Starts all servers. Returns the address of the coordinator."""
        servers, workers = self.counts
        self.servers.append(self.machine.start(
            [self.server, "--shard=0", f"--servers={servers}", f"--workers={workers}",
             *self.job_flags], self.limit_s))
        until = time.monotonic() + 30
        found = None
        while not found:
            time.sleep(0.05)
            found = re.search(r"listening.*control=(\S+)", self.log_text())
            if not found and (time.monotonic() > until or self.servers[0].poll() is not None):
                raise JobFailed("the coordinator did not start; see first_run.log")
        for shard in range(1, servers):
            self.servers.append(self.machine.start(
                [self.server, f"--shard={shard}", f"--coordinator={found[1]}"], self.limit_s))
        return found[1]

    def run(self, worker_flags, variables_of_first=None):
        """Runs the job to its end. Returns the last JSON object that each worker printed. Each
        worker plays a host of its own: workers of one host would exchange float32 whatever
        --wire says."""
        coordinator = self.start_servers()
        for rank in range(self.counts[1]):
            output = os.path.join(self.machine.folder, f"worker_{rank}.out")
            open(output, "w", encoding="utf-8").close()
            variables = variables_of_first or {} if rank == 0 else {}
            self.workers.append((self.machine.start(
                [self.machine.worker(), f"--coordinator={coordinator}", f"--node=host-{rank}",
                 *worker_flags],
                self.limit_s, output, **variables), output))
        codes = [finish(process, self.limit_s * self.machine.timeout_factor + 15)
                 for process, _ in self.workers]
        results = []
        for _, output in self.workers:
            with open(output, encoding="utf-8", errors="replace") as file:
                text = file.read()
            self.machine.note(text)
            results += json_lines(text)[-1:]
        if any(codes) or len(results) != self.counts[1]:
            raise JobFailed(f"the workers' exit codes are {codes}; see first_run.log")
        return results


def hidden_percent(trace, copy):
    """Percent of the time of copies, "copy out" or "copy in", in which the GPU computed; None
    without copies."""
    spans = {"compute": [], copy: []}
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event["cat"] in spans:
            spans[event["cat"]].append((event["ts"], event["ts"] + event["dur"]))
    computing, copies = spans["compute"], spans[copy]
    hidden = sum(max(0.0, min(end, to) - max(begin, since))
                 for begin, end in copies for since, to in computing)
    total = sum(end - begin for begin, end in copies)
    return 100 * hidden / total if total > 0 else None


def trace_copies(machine, table, options):
    trace = os.path.join(options.out, "trace.json")
    flags = (["--model=mlp", "--limit=2000", "--epochs=1"] if machine.emulated
             else ["--limit=4000", "--epochs=1"])
    with Cluster(machine, 1, 1, [], 90) as cluster:
        cluster.run([*flags, "--json", "--device=cuda:0", f"--trace={trace}"])
    with open(trace, encoding="utf-8") as file:
        events = json.load(file)
    for way, limit in (("out", at_least(HIDDEN_PERCENT)), ("in", None)):
        hidden = hidden_percent(events, f"copy {way}")
        if hidden is None:
            table.fail("jobs", f"copies {way} beside computing", "the trace has no copies")
        else:
            table.add("jobs", f"copies {way} beside computing", hidden, "%", limit, speed=True)


def guarded(table, step, name, function, *arguments):
    """Calls the function. If it raises an error, adds a row that failed."""
    try:
        function(*arguments)
    except (JobFailed, OSError, ValueError, KeyError, TypeError) as error:
        table.fail(step, name, f"{type(error).__name__}: {error}"
                   if not isinstance(error, JobFailed) else str(error))


def run_jobs(machine, table, options):
    before = None if machine.emulated else memory_used()
    for name, flags in variants(machine, options):
        guarded(table, "jobs", name, compare_with_cpu, machine, table, options, name, flags)
    guarded(table, "jobs", "one worker", compare_speed, machine, table, options)
    guarded(table, "jobs", "4 workers on one GPU", share_four, machine, table, options)
    guarded(table, "jobs", "copies beside computing", trace_copies, machine, table, options)
    name = "memory of the GPU after the jobs, more than before"
    if before is None:
        table.skip("jobs", name, "the GPU is emulated" if machine.emulated
                   else "nvidia-smi does not say it")
        return
    time.sleep(2)  # The driver frees the memory of a process a moment after its end.
    after = memory_used()
    table.add("jobs", name, None if after is None else after - before, "MiB",
              at_most(MEMORY_MIB), f"{before} MiB before, {after} MiB after")


class Replay:
    """A model with its times, for replays."""

    def __init__(self, machine, options, model):
        self.machine = machine
        self.options = options
        self.model = model
        self.steps = 8 if machine.emulated else 12 if options.quick else 30
        self.warm_up = 2 if machine.emulated else 4
        seconds = MODELS[model][0]
        if machine.emulated:
            seconds = 0.004
            self.model = os.path.join(options.out, f"{model}_small.csv")
            with open(self.model, "w", encoding="utf-8") as file:
                file.write(SMALL_MODEL)
        self.times = os.path.join(options.out, f"{model}_times.json")
        self._write_times(seconds)

    def _write_times(self, seconds):
        """Writes the times of the layers. Their sum is `seconds`. The share of a layer is
        its share of the floating-point operations. A backward takes twice as long as a forward."""
        plan = self.machine.run(
            [self.machine.program("server/admin/nereusctl"), "plan", f"--model={self.model}",
             f"--batch={BATCH}", "--workers=2", "--bandwidth=10Gbit", "--latency=20us",
             f"--compute={seconds}s", "--json"], 30)
        begin = plan.output.find("{\n")
        if plan.code != 0 or begin < 0:
            raise JobFailed("nereusctl plan does not list the layers; see first_run.log")
        layers = json.JSONDecoder().raw_decode(plan.output[begin:])[0]["layers"]
        work = [layer["m"] * layer["n"] * layer["k"] if layer["kind"] in ("conv", "fc") else 0
                for layer in layers]
        times = [{"name": layer["name"], "forward_seconds": seconds * part / sum(work) / 3,
                  "backward_seconds": seconds * part / sum(work) * 2 / 3}
                 for layer, part in zip(layers, work)]
        with open(self.times, "w", encoding="utf-8") as file:
            json.dump({"layers": times}, file)

    def run(self, device, workers, job_flags, variables=None):
        """Runs a replay. Returns the results of the workers."""
        flags = [f"--model={self.model}", f"--batch={BATCH}", f"--replay={self.times}",
                 f"--steps={self.steps}", "--json"]
        if device != "cpu":
            flags.append(f"--device={device}")
        with Cluster(self.machine, 2, workers, job_flags, 90) as cluster:
            return cluster.run(flags, variables)

    def step_ms(self, results):
        return 1e3 * statistics.median(
            seconds for result in results for seconds in result["step_seconds"][self.warm_up:])


def replay_variants(options):
    """Label, number of workers and flags of each job. Several workers on one GPU take turns,
    so the times of the first job alone are judged."""
    known = [("1 worker", 1, ["--scheme=server"])]
    if not options.quick:
        known += [
            ("2 workers", 2, ["--scheme=server"]),
            ("2 workers, bf16", 2, ["--scheme=server", "--wire=bf16"]),
            ("2 workers, optimizer=worker", 2, ["--scheme=server", "--optimizer=worker"]),
            ("2 workers, auto", 2, ["--scheme=auto", "--cost=bytes"]),
            ("2 workers, auto, optimizer=worker", 2,
             ["--scheme=auto", "--cost=bytes", "--optimizer=worker"])]
    return known


def compare_replay(table, replay, name, variant, copied):
    label, workers, flags = variant
    row = f"{name}, {label}"
    on_cpu = replay.step_ms(replay.run("cpu", workers, flags))
    table.add("replay", f"{row}: step on the CPU", on_cpu, "ms",
              note="a small model in its place" if table.emulated else "")
    results = replay.run("cuda:0", workers, flags)
    on_gpu = replay.step_ms(results)
    judged = workers == 1
    table.add("replay", f"{row}: step on the GPU", on_gpu, "ms")
    table.add("replay", f"{row}: GPU minus CPU", on_gpu - on_cpu, "ms",
              at_most(MODELS[name][1]) if judged else None, speed=True)
    copies = results[0].get("copies") or {}
    hidden = copies.get("hidden_share_out")
    if hidden is None:
        table.skip("replay", f"{row}: copies out beside computing",
                   "the worker does not report them")
    else:
        table.add("replay", f"{row}: copies out beside computing", 100 * hidden, "%",
                  at_least(HIDDEN_OUT_PERCENT) if judged else None, speed=True)
    copied[label] = copies.get("bytes_out_per_step")
    if label.endswith("bf16") and copied.get("2 workers") and copied[label]:
        table.add("replay", f"{row}: bytes out against fp32",
                  100 * copied[label] / copied["2 workers"], "%", at_most(51))


def run_replays(machine, table, options):
    for name in MODELS:
        try:
            replay = Replay(machine, options, name)
        except JobFailed as error:
            table.fail("replay", name, str(error))
            continue
        copied = {}  # Bytes copied to the host per step, by label.
        for variant in replay_variants(options):
            guarded(table, "replay", f"{name}, {variant[0]}", compare_replay, table, replay,
                    name, variant, copied)


def repeat_factor_job(machine, table, options):
    flags = ["--workers=2", "--servers=2", "--scheme=factor", "--optimizer=worker",
             "--deterministic", "--model=mlp", "--limit=2000", "--device=cuda:0"]
    sums = [train(machine, options, f"repeat_{run}", flags)["workers"][0]["parameter_checksum"]
            for run in (1, 2)]
    table.add("experiments", "two runs of one factor job: equal bits", sums[0] == sums[1], "",
              equals(True), f"checksums {sums[0]} and {sums[1]}")


def vary_connections(machine, table, options):
    for count in ("8", "32"):
        row = f"CUDA_DEVICE_MAX_CONNECTIONS={count}"
        run_tests(machine, table, "experiments", "gpu_job_kinds_test", 120, label=", " + row,
                  CUDA_DEVICE_MAX_CONNECTIONS=count)
        replay = Replay(machine, options, "resnet-50")
        results = replay.run("cuda:0", 1, ["--scheme=server"],
                             {"CUDA_DEVICE_MAX_CONNECTIONS": count})
        table.add("experiments", f"resnet-50, {row}: step", replay.step_ms(results), "ms")


def vary_workspace(machine, table, _):
    """Sets another workspace for cuBLAS on one of two workers. By the workspace, cuBLAS can
    choose other kernels, which give products with other bits. Either the job refuses the
    difference, or the replicas stay equal."""
    name = "one worker with CUBLAS_WORKSPACE_CONFIG"
    flags = ["--model=mlp", "--limit=2000", "--epochs=1", "--json", "--device=cuda:0"]
    with Cluster(machine, 2, 2, ["--scheme=factor", "--optimizer=worker"], 60) as cluster:
        try:
            results = cluster.run(flags, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"})
        except JobFailed:
            text = cluster.log_text()
            if not re.search("multiplies factors on|replica|checksum", text):
                raise
            table.add("experiments", name, "refused", "", None,
                      "the job ended, since its workers differ; see first_run.log")
            return
    sums = {result["parameter_checksum"] for result in results}
    table.add("experiments", name + ": replicas equal", len(sums) == 1, "", equals(True))


def run_experiments(machine, table, options):
    guarded(table, "experiments", "two runs of one factor job", repeat_factor_job, machine,
            table, options)
    table.skip("experiments", "piece sizes of the stager",
               "nereus-worker has no flag for them; see the pieces under ceilings")
    if options.quick:
        for part in EXPERIMENT_PARTS[1:]:
            table.skip("experiments", part, "left out by --quick")
        return
    guarded(table, "experiments", "CUDA_DEVICE_MAX_CONNECTIONS", vary_connections, machine,
            table, options)
    guarded(table, "experiments", EXPERIMENT_PARTS[2], vary_workspace, machine, table, options)
