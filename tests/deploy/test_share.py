"""Checks what lets jobs take turns at the devices of the same nodes: the manifests of two such
jobs, and the scripts for Slurm. test_pods.py and test_slurm.py run such jobs."""

import copy
import json
import os
import re
import stat
import subprocess
import sys

import pytest
import yaml
from conftest import KUBERNETES, ROOT, SHARED, load
from test_manifests import JOBSET_NAME, of_kind, options_of, roles_of

SLURM = os.path.join(ROOT, "deploy", "slurm")


def pod_of(objects, role="worker"):
    return roles_of(objects)[role]["spec"]["template"]["spec"]


def container_of(objects, role="worker"):
    return pod_of(objects, role)["containers"][0]


def variables_of(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def board_folder(objects):
    """The folder of a worker's device on its node. "" if the program cannot make it: its parent
    must be the folder that the kubelet makes for a subPath of the node's /dev/shm."""
    folder = variables_of(container_of(objects)).get("NEREUS_SHARE", "")
    for mount in container_of(objects)["volumeMounts"]:
        for volume in pod_of(objects)["volumes"]:
            if (mount["name"] == volume["name"] and mount.get("subPath")
                    and mount["mountPath"] == os.path.dirname(folder)):
                return os.path.join(volume["hostPath"]["path"], mount["subPath"],
                                    os.path.basename(folder))
    return ""


def keeps_apart(objects):
    """Whether no node runs two workers of the job."""
    labels = {**roles_of(objects)["worker"]["spec"]["template"]["metadata"]["labels"],
              JOBSET_NAME: of_kind(objects, "JobSet")[0]["metadata"]["name"]}
    terms = pod_of(objects).get("affinity", {}).get("podAntiAffinity", {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution", [])
    return any(term["topologyKey"] == "kubernetes.io/hostname" and "namespaces" not in term
               and term["labelSelector"]["matchLabels"].items() <= labels.items()
               for term in terms)


def obstacles(one, two, replicas):
    """What keeps the workers of two jobs from taking turns on the same nodes, whose GPUs the
    device plugin offers `replicas` times."""
    found = []

    def demand(truth, what):
        if not truth:
            found.append(what)

    for objects in (one, two):
        demand(board_folder(objects), "no folder that the worker can make")
        demand(keeps_apart(objects), "two workers of one job on a node")
        demand(container_of(objects)["resources"]["limits"]["nvidia.com/gpu"] == 1,
               "another number of GPUs")
        demand(not {"NEREUS_SHARE"} & {*options_of(objects),
                                       *variables_of(container_of(objects, "coordinator"))},
               "a coordinator with a device")
    demand(board_folder(one) == board_folder(two), "two folders")
    selectors = [pod_of(objects).get("nodeSelector") for objects in (one, two)]
    demand(selectors[0] and selectors[0] == selectors[1], "other nodes")
    users = {pod_of(objects)["securityContext"]["runAsUser"] for objects in (one, two)}
    demand(len(users) == 1, "two users")
    names = {(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"])
             for objects in (one, two) for item in objects}
    demand(len(names) == len(one) + len(two), "objects of one name")
    demand(replicas >= 2, "one replica")
    return found


@pytest.fixture(scope="session")
def replicas():
    """How often NVIDIA's plugin offers each GPU of a node with the label."""
    with open(os.path.join(KUBERNETES, "components", "share", "time-slicing.yaml"),
              encoding="utf-8") as file:
        [configurations] = load(file.read())
    others, shared = (yaml.safe_load(configurations["data"][name])
                      for name in ("default", "shared"))
    assert "sharing" not in others and {others["version"], shared["version"]} == {"v1"}
    [resource] = shared["sharing"]["timeSlicing"]["resources"]
    assert resource["name"] == "nvidia.com/gpu"
    return resource["replicas"]


def test_jobs_of_the_example_take_turns_on_the_same_nodes(renders, replicas):
    assert obstacles(*(renders[name] for name in SHARED), replicas) == []


def test_the_example_renders_as_a_whole(render, renders):
    whole = render(os.path.join("overlays", "shared"))
    assert len(whole) == sum(len(renders[name]) for name in SHARED)


def set_variable(objects, name, value):
    [entry] = [entry for entry in container_of(objects)["env"] if entry["name"] == name]
    entry["value"] = value


# A fault in the second job, and what finds it.
FAULTS = {
    "other folder": ("two folders", lambda o: set_variable(
        o, "NEREUS_SHARE", "/share/other")),
    "folder in the image": ("no folder", lambda o: set_variable(
        o, "NEREUS_SHARE", "/device")),
    "two missing folders": ("no folder", lambda o: set_variable(
        o, "NEREUS_SHARE", "/share/gpu/device")),
    "no variable": ("no folder", lambda o: container_of(o)["env"].pop()),
    "no mount": ("no folder", lambda o: container_of(o)["volumeMounts"].clear()),
    "no volume": ("no folder", lambda o: pod_of(o)["volumes"].clear()),
    "folder of root": ("no folder", lambda o: container_of(o)["volumeMounts"][0].pop("subPath")),
    "other folder of the node": ("two folders", lambda o: container_of(o)[
        "volumeMounts"][0].update(subPath="nereus-2")),
    "variable for all": ("coordinator", lambda o: options_of(o).update(NEREUS_SHARE="/x")),
    "other nodes": ("other nodes", lambda o: pod_of(o)["nodeSelector"].clear()),
    "no affinity": ("two workers", lambda o: pod_of(o).pop("affinity")),
    "affinity to others": ("two workers", lambda o: pod_of(o)["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"][
            "matchLabels"].update({JOBSET_NAME: "other"})),
    "two GPUs": ("number of GPUs", lambda o: container_of(o)["resources"]["limits"].update(
        {"nvidia.com/gpu": 2})),
    "other user": ("two users", lambda o: pod_of(o)["securityContext"].update(runAsUser=1000)),
    "one namespace": ("one name", lambda o: [item["metadata"].update(namespace="training-one")
                                             for item in o]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_obstacles_find(renders, replicas, fault):
    finding, plant = FAULTS[fault]
    one, two = (copy.deepcopy(renders[name]) for name in SHARED)
    plant(two)
    found = obstacles(one, two, replicas)
    # A worker without a folder differs from that of the other job, too.
    assert finding in found[0]
    assert found[1:] == (["two folders"] if finding == "no folder" else [])


# Stands for Slurm's program. Notes its arguments and our variables; fails for --bad.
SBATCH = f"""#!{sys.executable}
import json, os, sys
if "--bad" in sys.argv:
    sys.exit("sbatch: error: unrecognized option")
with open(os.environ["CALLS"], "a+") as file:
    file.write(json.dumps([sys.argv[1:], {{name: value for name, value in os.environ.items()
                                          if name.startswith("NEREUS_")}}]) + "\\n")
    file.seek(0)
    print(f"{{40 + len(file.readlines())}};cluster")
"""
# Prints a line of the file STATES for each call.
SQUEUE = """#!/bin/bash
echo "$*" >>"$ASKED"
sed --quiet 1p "$STATES"
sed --in-place 1d "$STATES"
"""


@pytest.fixture
def share(tmp_path, monkeypatch):
    """A function that runs share.sh beside programs that stand for Slurm's, while the first
    job has these states. It returns the result, and what each call of sbatch was like."""
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name in ("CALLS", "STATES", "ASKED"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith("NEREUS_")]:
        monkeypatch.delenv(name)

    def run(*arguments, states=("RUNNING 2 node[3,7]",)):
        (tmp_path / "CALLS").write_text("")
        (tmp_path / "STATES").write_text("".join(f"{state}\n" for state in states))
        done = subprocess.run([os.path.join(SLURM, "share.sh"), *arguments],
                              capture_output=True, text=True, check=False)
        return done, [json.loads(line)
                      for line in (tmp_path / "CALLS").read_text().splitlines()]
    return run


def test_jobs_go_to_the_nodes_of_the_first_one(share, tmp_path):
    done, calls = share("--nodes=2-4", "--gres=shard:1", "--", "NEREUS_JOB_NAME=one", "./train",
                        "--name=a b", "--", "NEREUS_JOB_NAME=two", "NEREUS_SHARE_WEIGHT=2",
                        "./train", "X=1", states=("PENDING 2 ", "RUNNING 2 node[3,7]"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "job 41:" in done.stdout and "job 42:" in done.stdout
    script = os.path.join(SLURM, "train.sbatch")
    [one, its_variables], [two, other_variables] = calls
    options = ["--parsable", "--nodes=2-4", "--gres=shard:1"]
    assert one == [*options, script, "./train", "--name=a b"]
    assert two == [*options, "--nodes=2", "--nodelist=node[3,7]", script, "./train", "X=1"]
    assert "--jobs=41 " in (tmp_path / "ASKED").read_text()
    folder = its_variables.pop("NEREUS_SHARE")
    assert re.fullmatch(r"/dev/shm/nereus-\w+", folder)
    assert its_variables == {"NEREUS_JOB_NAME": "one"}
    assert other_variables == {"NEREUS_JOB_NAME": "two", "NEREUS_SHARE_WEIGHT": "2",
                               "NEREUS_SHARE": folder}


def test_a_folder_of_the_user_is_kept(share, monkeypatch):
    monkeypatch.setenv("NEREUS_SHARE", "/var/tmp/turns")
    done, calls = share("--nodes=2", "--", "./one", "--", "./two", "--", "./three")
    assert done.returncode == 0
    assert [variables["NEREUS_SHARE"] for _, variables in calls] == ["/var/tmp/turns"] * 3
    assert [arguments[-2:] for arguments, _ in calls[1:]] == [
        [os.path.join(SLURM, "train.sbatch"), program] for program in ("./two", "./three")]
    assert all("--nodelist=node[3,7]" in arguments for arguments, _ in calls[1:])


def test_no_job_follows_one_that_has_ended(share):
    done, calls = share("--nodes=2", "--", "./one", "--", "./two", states=())
    assert done.returncode == 1 and "job 41 has ended" in done.stderr and len(calls) == 1


@pytest.mark.parametrize("code, message, arguments", [
    (2, "Usage", ["--nodes=2"]),
    (2, "a program is missing", ["--nodes=2", "--", "NEREUS_EPOCHS=1", "--", "./two"]),
    (2, "a program is missing", ["--nodes=2", "--"]),
    (1, "unrecognized option", ["--bad", "--", "./one", "--", "./two"]),
], ids=["no program", "variables alone", "nothing", "refused by sbatch"])
def test_mistakes_submit_no_job(share, code, message, arguments):
    done, calls = share(*arguments)
    assert done.returncode == code and message in done.stderr and calls == []


@pytest.mark.parametrize("gpus, task, device", [
    ("", 0, "cores0"), ("", 3, "cores3"), ("2", 0, "gpu2"), ("2", 1, "gpu2"), ("4,6", 0, "gpu4"),
    ("4,6", 1, "gpu6"), ("4,6", 2, "gpu4")])
def test_a_worker_gets_the_folder_of_its_device(tmp_path, gpus, task, device):
    with open(os.path.join(SLURM, "train.sbatch"), encoding="utf-8") as file:
        function = re.search(r"^share\(\) \{\n.*?^\}\n", file.read(), re.DOTALL | re.MULTILINE)[0]
    folder = tmp_path / "turns"

    def run(**variables):
        return subprocess.run(
            ["bash", "-euc", f'umask 0\n{function}\nshare; printf %s "${{NEREUS_SHARE-none}}"'],
            env={"PATH": os.environ["PATH"], "SLURM_LOCALID": str(task),
                 **({"SLURM_STEP_GPUS": gpus} if gpus else {}), **variables},
            stdout=subprocess.PIPE, text=True, check=True).stdout

    assert run() == "none"
    assert run(NEREUS_SHARE=str(folder)) == run(NEREUS_SHARE=str(folder)) == f"{folder}/{device}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and list(folder.iterdir()) == []
