"""Trains MNIST in jobs of a real Slurm, on two nodes that are this machine, while processes
are killed, a node is lost, and jobs are canceled and requeued."""

import re
import time

import pytest
from conftest import need_root
from jobs import (has_backups, has_lost_a_server, has_lost_a_worker, live, results,
                  until)
from slurm import Slurm

ACCURACY_MIN = 0.9  # After one epoch.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    need_root("namespaces")
    with Slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def submit(cluster, mnist, tmp_path):
    """A function that submits a job of 2 workers and 2 servers, and waits until it trains."""
    def run(delay, **variables):
        cluster.submit("nereus-worker", f"--data={mnist}", NEREUS_EPOCHS="1",
                       NEREUS_DELAY=str(delay), NEREUS_CHECKPOINT_DIR=str(tmp_path / "checkpoints"),
                       NEREUS_CHECKPOINT_EVERY="10", **variables)
        return cluster.until("the job trains", lambda s: s["state"] == "running"
                             and has_backups(s) and s["step"] >= 10)
    return run


def until_requeued(cluster):
    state = until("the job is requeued", cluster.state, lambda s: s.get("Reason") == "BeginTime")
    assert (state["JobState"], state["Restarts"]) == ("PENDING", "1")


def test_kills_and_a_lost_node_cost_no_job(cluster, submit):
    submit(delay=0.15)  # Seconds in each step: the job must not end before the last event.

    cluster.kill("node2", "nereus-worker")
    cluster.until("an epoch without worker 1", lambda s: has_lost_a_worker(s, {"0"}))
    cluster.until("worker 1 is back", lambda s: live(s) == {"0", "1"})

    cluster.kill("node2", "nereus-server")
    cluster.until("an epoch without shard 1's process", has_lost_a_server)
    before = cluster.until("all backups are whole", has_backups)

    cluster.kill("node1", "nereus-server --coordinate-only")
    cluster.until("the coordinator is back", lambda s: s["step"] > before["step"])
    assert cluster.log().count("has ended with code 137, and is started again") == 3

    cluster.lose("node2")
    before = cluster.until("an epoch without node2", lambda s: live(s) == {"0"})
    cluster.until("the job goes on", lambda s: s["step"] > before["step"])
    state = cluster.until_state("COMPLETED", "FAILED", timeout=120)
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("COMPLETED", "0:0", "0")
    [(accuracy, _)] = results(cluster.log())
    assert float(accuracy) >= ACCURACY_MIN
    assert re.search(r"finished after step \d+; its parameters are in the checkpoint of round",
                     cluster.log())
    cluster.bring_back("node2")


def test_the_job_starts_again_after_the_loss_of_its_first_node(cluster, submit):
    submit(delay=0.05, NEREUS_CONNECT_TIMEOUT="3")
    cluster.lose("node1")
    until_requeued(cluster)
    cluster.slurm("scancel", cluster.job)
    cluster.bring_back("node1")


def test_a_canceled_job_goes_on_and_one_at_its_time_limit_is_requeued(cluster, submit):
    def stopped():
        """The last step before the job stopped, which is in a checkpoint."""
        until("the job's processes have ended",
              lambda: cluster.slurm("squeue", "-h", "-t", "R,CG") or "none",
              lambda lines: lines == "none")
        return int(re.findall(r"WARNING.* was stopped after step (\d+), .* checkpoint of round \1",
                              cluster.log())[-1])

    def restored():
        return int(re.findall(r"verifying the checkpoint of round (\d+)", cluster.log())[-1])

    seen = submit(delay=0.05)["step"]
    cluster.slurm("scancel", cluster.job)
    cluster.until_state("CANCELLED")
    left_at = stopped()
    assert left_at >= seen - 1 and cluster.log().count("left the job early, after step") == 2

    # Another job in the same folder goes on from there.
    seen = submit(delay=0.05)["step"]
    assert restored() == left_at and seen >= left_at
    # Slurm sends the script this signal two minutes before the time limit.
    cluster.slurm("scancel", "--batch", "--signal=USR1", cluster.job)
    until_requeued(cluster)
    left_at = stopped()
    assert left_at >= seen - 1  # The step that was under way.

    # Slurm would wait for two minutes. It refuses a start within the second in which it has ended
    # the job ("Job credential revoked"): its times are whole seconds.
    time.sleep(2)
    cluster.slurm("scontrol", "update", f"JobId={cluster.job}", "StartTime=now")
    state = cluster.until_state("COMPLETED", "FAILED", timeout=120)
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("COMPLETED", "0:0", "1")
    assert restored() == left_at
    measured = results(cluster.log())
    assert len(measured) == 2 and len(set(measured)) == 1, measured
    assert float(measured[0][0]) >= ACCURACY_MIN


def test_a_wrong_variable_ends_the_job_at_once(cluster):
    cluster.submit("nereus-worker", NEREUS_EPOCHS="many")
    state = cluster.until_state("FAILED", "COMPLETED")
    assert (state["ExitCode"], state["Restarts"]) == ("2:0", "0")
    assert "NEREUS_EPOCHS" in cluster.log() and "started again" not in cluster.log()


@pytest.mark.parametrize("options, device", [
    (["--gres=shard:1"], "gpu0"),
    # Each job has all cores of both nodes.
    (["--partition=shared", "--oversubscribe", "--cpus-per-task=8"], "cores0")],
    ids=["GPUs", "cores"])
def test_two_jobs_take_turns_at_the_devices_of_the_same_nodes(cluster, mnist, options, device):
    program = ["nereus-worker", f"--data={mnist}"]
    numbers = cluster.share(["--nodes=2", *options], ["NEREUS_JOB_NAME=one", *program],
                            ["NEREUS_JOB_NAME=two", *program], NEREUS_EPOCHS="1",
                            NEREUS_DELAY="0.05")
    [_, cluster.job] = numbers
    for node in ("node1", "node2"):
        devices = until(
            f"workers of both jobs take turns on {node}", lambda: cluster.devices(node),
            lambda found: all(len(clients) == 2 and all(client["turns"] >= 20 for client in clients)
                              for clients in found.values()))
        [clients] = devices.values()
        assert set(devices) == {device} and {c["job"] for c in clients} == {"one", "two"}
        folders = {variables.get("NEREUS_SHARE")
                   for command, variables in cluster.processes(node).values()
                   if command.startswith("nereus-worker")}
        assert folders == {f"{cluster.folder}/node/turns/{device}"}
    for cluster.job in numbers:
        state = cluster.until_state("COMPLETED", "FAILED", timeout=120)
        assert (state["JobState"], state["NodeList"]) == ("COMPLETED", "node[1-2]")
        measured = results(cluster.log())
        assert len(measured) == 2 and len(set(measured)) == 1, measured
        assert float(measured[0][0]) >= ACCURACY_MIN
