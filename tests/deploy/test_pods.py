"""Trains MNIST in pods of podman, made from the rendered JobSet with its security context,
limits, variables and restart rules, while processes are killed, drained and added. Two such
jobs take turns on their nodes."""

import json
import os
import re
import subprocess
import time

import pytest
from conftest import KUBERNETES, load, need
from jobs import NEREUSCTL, has_backups, has_lost_a_server, live, until
from pods import PodJob

ACCURACY_MIN = 0.98

OVERLAY = """
resources: [{base}]
components: [{components}]
configMapGenerator:
- name: nereus
  behavior: merge
  literals: [NEREUS_DATA=/data, NEREUS_EPOCHS={epochs}, NEREUS_CHECKPOINT_EVERY=100{options}]
patches:
- target: {{kind: JobSet}}
  patch: |-
    - op: add
      path: /spec/replicatedJobs/{workers}/template/spec/template/spec/volumes/-
      value: {{name: data, persistentVolumeClaim: {{claimName: mnist}}}}
    - op: add
      path: /spec/replicatedJobs/{workers}/template/spec/template/spec/containers/0/volumeMounts/-
      value: {{name: data, mountPath: /data, readOnly: true}}
"""


@pytest.fixture
def make(kubectl, images, mnist, tmp_path):
    """A function: a job of base with these components that trains so many passes of MNIST.
    None of its pods is started yet."""
    need("runc", "iptables")

    def run(epochs, *components, options=""):
        folder = os.path.relpath(KUBERNETES, tmp_path)
        text = OVERLAY.format(
            base=f"{folder}/base", epochs=epochs, workers=1 if "colocated" in components else 2,
            components=", ".join(f"{folder}/components/{name}" for name in components),
            options=options)
        with open(tmp_path / "kustomization.yaml", "w", encoding="utf-8") as file:
            file.write(text)
        objects = load(subprocess.run([kubectl, "kustomize", str(tmp_path)], check=True,
                                      capture_output=True, text=True).stdout)
        return PodJob(objects, tmp_path, {"mnist": mnist}, tmp_path / "nodes")

    return run


@pytest.fixture
def job(make, request):
    with make(*request.param) as made:
        yield made


def start_all(job):
    pods = [job.start("coordinator", 0), *(job.start("server", i) for i in range(2)),
            *(job.start("worker", i) for i in range(4))]
    status, _ = job.until("the job runs", lambda s: s["state"] == "running" and has_backups(s)
                          and s["step"] >= 20)
    return pods, status


def results(job, pods):
    """The test accuracy and the checksum of the parameters in each worker's last lines."""
    return {pod: re.search(r"test accuracy ([\d.]+), parameters (\w+)", job.log(pod)).groups()
            for pod in pods}


@pytest.mark.parametrize("job", [(28, "checkpoints")], ids=["base"], indirect=True)
def test_kills_drains_and_a_new_worker_cost_no_accuracy(job):
    (coordinator, *servers, first, second, third, fourth), status = start_all(job)
    times = {}

    # A worker is killed. The others go on, and it comes back in its pod.
    killed_at = job.kill(third)
    _, at = job.until("an epoch without worker 2", lambda s: s["epoch"] > status["epoch"]
                      and s["step"] > status["step"])
    times["worker killed: the others go on"] = at - killed_at
    status, at = job.until("worker 2 is back", lambda s: live(s) == set("0123"))
    times["worker killed: it trains again"] = at - killed_at
    assert job.exits[third] == [137]

    # A server is killed. The other one has its values.
    status, _ = job.until("all backups are whole", has_backups)
    killed_at = job.kill(servers[1])
    _, at = job.until("an epoch without shard 1's process",
                      lambda s: s["epoch"] > status["epoch"] and has_lost_a_server(s))
    times["server killed: the workers go on"] = at - killed_at
    status, at = job.until("all backups are whole", has_backups)
    times["server killed: all shards have their backups"] = at - killed_at
    assert job.exits[servers[1]] == [137]

    # The coordinator is killed. Training goes on meanwhile.
    before = job.until("an answer", lambda s: True)[0]["step"]
    killed_at = job.kill(coordinator)
    status, at = job.until("the coordinator is back", lambda s: s["step"] > before)
    times["coordinator killed: it answers again"] = at - killed_at
    assert job.exits[coordinator] == [137] and status["reason"] == ""

    # A worker that would train otherwise is refused for good, and is not started again.
    refused = job.start("worker", 5, NEREUS_BATCH="64")
    assert job.await_exits([refused], 30) == {refused: 4}
    # A worker without a coordinator is started again and again.
    lonely = job.start("worker", 6, NEREUS_COORDINATOR="train:7000", NEREUS_CONNECT_TIMEOUT="1")
    # One with a wrong variable is not.
    wrong = job.start("worker", 7, NEREUS_EPOCHS="many")
    assert job.await_exits([wrong], 30) == {wrong: 2}

    # The job grows by a worker, as when its numbers are patched.
    started_at = time.monotonic()
    fifth = job.start("worker", 4)
    _, at = job.until("worker 4 has joined", lambda s: live(s) == set("01234"))
    times["worker added: it trains"] = at - started_at

    # An operator drains a worker: it ends with code 0, and stays away.
    asked_at = time.monotonic()
    subprocess.run([NEREUSCTL, "drain", "1", f"--server={job.coordinator}:7000"], check=True)
    assert job.await_exits([second], 10) == {second: 0}
    times["worker drained: it has ended"] = time.monotonic() - asked_at
    job.until("worker 1 is away", lambda s: live(s) == set("0234"), timeout=2)

    # The node of a worker and of a server is drained: they leave, and new pods replace them.
    times["worker evicted: it has ended"] = job.evict(fourth)
    assert job.await_exits([fourth], 5) == {fourth: 143}
    times["server evicted: it has ended"] = job.evict(servers[0])
    assert job.await_exits([servers[0]], 5) == {servers[0]: 143}
    assert max(times["worker evicted: it has ended"], times["server evicted: it has ended"]) < 11
    started_at = time.monotonic()
    job.start("server", 0)
    _, at = job.until("all backups are whole", has_backups)
    times["server replaced: all shards have their backups"] = at - started_at
    job.start("worker", 3)
    status, _ = job.until("worker 3 is back", lambda s: live(s) == set("0234"))
    assert len(job.exits[lonely]) >= 2 and set(job.exits[lonely]) == {75}
    job.evict(lonely)

    workers = [first, third, fourth, fifth]
    ends = job.await_exits([coordinator, *servers, *workers], 240)
    assert set(ends.values()) == {0}, ends
    assert job.exits[refused] == [4] and job.exits[wrong] == [2]
    measured = results(job, workers)
    assert len({parameters for _, parameters in measured.values()}) == 1, measured
    accuracy = float(measured[first][0])
    assert accuracy >= ACCURACY_MIN
    report = {"accuracy": accuracy, "last_step_seen": status["step"],
              "seconds": {name: round(seconds, 2) for name, seconds in times.items()}}
    print(json.dumps(report, indent=1))
    if os.environ.get("NEREUS_POD_TIMES"):
        with open(os.environ["NEREUS_POD_TIMES"], "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")


@pytest.mark.parametrize("job", [(6, "checkpoints")], ids=["base"], indirect=True)
def test_a_job_that_is_stopped_goes_on_after_a_restart(job):
    pods, status = start_all(job)
    # All pods are deleted, for example because Kueue gives their room to another job.
    seconds = job.evict(*pods)
    ends = job.await_exits(pods, 5)
    assert set(ends.values()) <= {143, 5} and seconds < 20, (ends, seconds)
    job.attempt = 1
    pods, _ = start_all(job)
    restored = re.search(r"verifying the checkpoint of round (\d+)", job.log(pods[0]))
    assert restored and int(restored[1]) >= status["step"] - 1, (status["step"], restored)
    assert set(job.await_exits(pods, 120).values()) == {0}
    measured = results(job, pods[3:])
    assert len({parameters for _, parameters in measured.values()}) == 1, measured


@pytest.mark.parametrize("job", [(1, "checkpoints", "colocated")], ids=["colocated"],
                         indirect=True)
def test_worker_and_server_of_one_pod_share_memory(job):
    coordinator = job.start("coordinator", 0)
    workers = [job.start("worker", index, NEREUS_LOG_LEVEL="debug") for index in range(4)]
    servers = [worker.replace("-nereus", "-server") for worker in workers]
    ends = job.await_exits([coordinator, *workers, *servers], 120)
    assert set(ends.values()) == {0}, ends
    for worker in workers:
        assert job.log(worker).count("by shared memory") == 1
    assert len({parameters for _, parameters in results(job, workers).values()}) == 1


def test_workers_of_two_jobs_take_turns_on_their_nodes(make, tmp_path):
    options = ", NEREUS_WORKERS=2, NEREUS_SERVERS=1, NEREUS_BACKUP=0, NEREUS_DELAY=0.05"
    one, two = (make(1, "checkpoints", "share", options=f"{options}, NEREUS_JOB_NAME={name}")
                for name in ("one", "two"))
    with one, two:
        pods = {job: [job.start("coordinator", 0), job.start("server", 0),
                      *(job.start("worker", number) for number in range(2))]
                for job in (one, two)}
        for node in range(2):
            device = tmp_path / "nodes" / str(node) / "dev" / "shm" / "nereus" / "device"

            def clients():
                done = subprocess.run([NEREUSCTL, "share", "--json", device], check=False,
                                      stdout=subprocess.PIPE, text=True)
                return done.returncode == 0 and json.loads(done.stdout)[0]["clients"]

            found = until(f"both jobs take turns on node {node}", clients,
                          lambda found: len(found) == 2 and all(c["turns"] > 20 for c in found))
            assert {client["job"] for client in found} == {"one", "two"}
            # Only the worker's user may enter the folder; any user may make one beside it.
            assert (device.stat().st_uid, device.stat().st_mode & 0o7777) == (65532, 0o700)
            assert (device.parent.stat().st_uid, device.parent.stat().st_mode & 0o7777) == (
                0, 0o1777)
        for job in (one, two):
            assert set(job.await_exits(pods[job], 240).values()) == {0}
            measured = results(job, pods[job][2:])
            assert len({parameters for _, parameters in measured.values()}) == 1, measured
