"""A job of Kubernetes in podman's pods: what JobSet and the kubelet do, as far as the
manifest says it.

Pods come from the rendered JobSet, with the names, labels and variables that JobSet gives
them. podman honours the security context, limits, volumes and host names, but neither
restartPolicyRules nor references to fields, which this module resolves. A thread starts
containers again by their restartPolicyRules. Nothing here waits between two restarts, as
the kubelet does from the second on.
"""

import importlib.util
import itertools
import json
import os
import re
import subprocess
import threading
import time

import jobs
import yaml
from conftest import KUBERNETES

specification = importlib.util.spec_from_file_location(
    "generate", os.path.join(KUBERNETES, "generate.py"))
generate = importlib.util.module_from_spec(specification)
specification.loader.exec_module(generate)


def podman(*arguments, check=True):
    """What podman prints. Podman fails if a process ends while it looks at it: it looks again."""
    while True:
        done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)
        if done.returncode == 0 or "no such process" not in done.stderr:
            break
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout.strip()


def pod_of(container):
    return container.rsplit("-", 1)[0]


def is_restarted(rules, code):
    """Whether one of a container's restartPolicyRules restarts it after this exit code."""
    return any((code in rule["exitCodes"]["values"]) == (rule["exitCodes"]["operator"] == "In")
               for rule in rules)


def resolve(pod, options, address):
    """Writes a pod's variables out: those of its ConfigMap, of its fields, and $(NAME)."""
    fields = {"status.podIP": address, "spec.nodeName": pod["metadata"]["name"]}
    for kind in ("labels", "annotations"):
        for key, value in pod["metadata"][kind].items():
            fields[f"metadata.{kind}['{key}']"] = value
    for container in pod["spec"]["containers"]:
        values = dict(options) if container.pop("envFrom", None) else {}
        for entry in container.get("env", []):
            value = (fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
                     if "valueFrom" in entry else entry["value"])
            values[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda m: values[m[1]], value)
        container["env"] = [{"name": name, "value": value} for name, value in values.items()]


def mount_folders_of_node(spec, root):
    """Makes what a pod mounts of its node, whose folders are below `root`. As the kubelet does,
    it lets root own the folder of a subPath, with the mode of the folder around it, and gives
    the container this folder alone, which podman could not do."""
    for volume in [volume for volume in spec.get("volumes", []) if "hostPath" in volume]:
        outer = root + volume["hostPath"]["path"]
        os.makedirs(outer, exist_ok=True)
        os.chmod(outer, 0o1777)  # As /dev/shm.
        volume["hostPath"]["path"] = outer
        for container in spec["containers"]:
            for mount in container["volumeMounts"]:
                if mount["name"] != volume["name"] or "subPath" not in mount:
                    continue
                inner = os.path.join(outer, mount.pop("subPath"))
                if not os.path.isdir(inner):
                    os.mkdir(inner)
                    os.chmod(inner, os.stat(outer).st_mode & 0o7777)
                mount["name"] = f"{container['name']}-{volume['name']}"
                spec["volumes"].append({"name": mount["name"], "hostPath": {
                    "path": inner, "type": "Directory"}})


class PodJob:
    """A job in pods. `objects` is a render with a JobSet; `folder` is for scratch files.
    `folders` of this machine take the place of claims: {claim: folder}. Pods of one number are
    on one node, whatever their job is: a folder PATH of the node with number N is
    `nodes`/N/PATH."""

    numbers = itertools.count()

    def __init__(self, objects, folder, folders, nodes=None):
        self.name = f"nereus-test-{os.getpid()}-{next(self.numbers)}"
        self.folder = folder
        self.folders = folders
        self.nodes = nodes
        self.options = next(o for o in objects if o["kind"] == "ConfigMap"
                            and o["metadata"]["name"] == "nereus")["data"]
        self.jobs = {job["metadata"]["name"].split("-")[1]: job
                     for job in generate.jobs_of(generate.the_jobset(objects))
                     if job["kind"] == "Job"}
        self.addresses = (f"{self.subnet}.{number}" for number in range(10, 250))
        self.subnet = None
        self.coordinator = None  # Its address.
        self.attempt = 0  # Restarts of the JobSet.
        self.exits = {}  # Exit codes of each container, in their order.
        self.rules = {}  # The restartPolicyRules of each, none if its pod is being deleted.
        self.looks = 0  # Times that watch() has looked at all containers.
        self.is_over = threading.Event()
        self.kubelet = threading.Thread(target=self.watch, daemon=True)

    def __enter__(self):
        podman("network", "create", "--internal", self.name)
        [network] = json.loads(podman("network", "inspect", self.name))
        self.subnet = network["subnets"][0]["subnet"].rsplit(".", 1)[0]
        self.kubelet.start()
        return self

    def __exit__(self, *error):
        self.is_over.set()
        self.kubelet.join()
        for container in self.rules:
            print(f"== {container}, exit codes {self.exits[container]}\n{self.log(container)}")
        podman("pod", "rm", "--force", "--time=0", *set(map(pod_of, self.rules)), check=False)
        podman("network", "rm", "--force", self.name, check=False)
        names = podman("volume", "ls", "--quiet", f"--filter=name={self.name}").split()
        podman("volume", "rm", "--force", *names, check=False)

    def start(self, role, index, **options):
        """Starts a pod, as JobSet's Job of this role would. Returns the name of its container
        `nereus`."""
        job = self.jobs[role]
        host = f"{job['metadata']['name']}-{index}"
        name = f"{self.name}-{host}"  # Two tests may run on one machine.
        pod = json.loads(json.dumps({"apiVersion": "v1", "kind": "Pod",
                                     **job["spec"]["template"]}))
        pod["metadata"]["name"] = name
        pod["spec"]["hostname"] = host
        pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] = str(self.attempt)
        pod["metadata"]["annotations"] = {
            "batch.kubernetes.io/job-completion-index": str(index)}
        rules = {}
        for container in pod["spec"]["containers"]:
            del container["ports"]  # podman would open them on this machine.
            rules[f"{name}-{container['name']}"] = container.pop("restartPolicyRules")
        mount_folders_of_node(pod["spec"], f"{self.nodes}/{index}")
        for volume in pod["spec"].get("volumes", []):
            claim = volume.get("persistentVolumeClaim")
            if claim and claim["claimName"] in self.folders:
                del volume["persistentVolumeClaim"]
                volume["hostPath"] = {"path": self.folders[claim["claimName"]]}
            elif claim:
                claim["claimName"] = f"{self.name}-{claim['claimName']}"
        address = next(self.addresses)
        if role == "coordinator":
            self.coordinator = address
        resolve(pod, self.options, address)
        pod["spec"]["containers"][0]["env"] += [
            {"name": key, "value": value} for key, value in options.items()]
        path = os.path.join(self.folder, f"{name}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            yaml.safe_dump(pod, file)
        self.exits.update({container: [] for container in rules})
        self.rules.update(rules)
        # podman makes a pod's network anew when its only container starts again. An address
        # of its own keeps what its peers know, as they do of a pod of Kubernetes.
        podman("kube", "play", "--replace", f"--ip={address}", "--log-driver=k8s-file",
               f"--mac-address=02:00:00:00:00:{int(address.rsplit('.', 1)[1]):02x}",
               f"--network={self.name}:alias={host}.{pod['spec']['subdomain']}", path)
        return f"{name}-nereus"

    def watch(self):
        """Does a kubelet's part: notes how containers end, and starts them again whose
        restartPolicyRules say so. It looks ten times in a second. The stream of
        `podman events` would be simpler, but sometimes tells nothing for minutes."""
        noted = set()
        while not self.is_over.wait(0.1):
            ended = [entry for entry in self.containers() if entry["State"] == "exited"]
            for entry in ended:
                container = entry["Names"][0]
                if entry["Id"] in noted or container not in self.rules:
                    continue
                noted.add(entry["Id"])
                code = entry["ExitCode"]
                self.exits[container].append(code)
                if is_restarted(self.rules[container], code):
                    # podman stops the pod after its only container.
                    pod = pod_of(container)
                    while podman("pod", "inspect", "--format={{.State}}", pod) != "Exited":
                        time.sleep(0.05)
                    podman("pod", "start", pod)
                    noted.remove(entry["Id"])
            self.looks += 1

    def containers(self):
        """The containers of the job, as podman lists them; [] if one vanishes meanwhile."""
        listed = podman("ps", "--all", f"--filter=name=^{self.name}-", "--format=json",
                        check=False)
        return json.loads(listed or "[]")

    def log(self, container):
        return subprocess.run(["podman", "logs", container], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False).stdout

    def kill(self, container):
        """Kills the process from the node, as the kernel does when memory is short. Returns
        the time."""
        pid = podman("inspect", "--format={{.State.Pid}}", container)
        at = time.monotonic()
        subprocess.run(["kill", "-KILL", pid], check=True)
        return at

    def evict(self, *containers):
        """Deletes pods, as a drain of their node does: SIGTERM, and SIGKILL after the grace
        period. Returns the seconds that it took."""
        at = time.monotonic()
        for container in containers:
            self.rules[container] = []
        podman("stop", "--time=30", *containers)
        seconds = time.monotonic() - at
        # The end must be noted before another pod takes the place of this one: in a look that
        # begins after it.
        looks = self.looks
        while self.looks < looks + 2:
            assert self.kubelet.is_alive()
            time.sleep(0.05)
        return seconds

    def status(self):
        """What nereusctl says about the job, or None while no coordinator answers."""
        return jobs.status(f"{self.coordinator}:7000")

    def until(self, what, is_true, timeout=60):
        """Waits until `is_true` of the job's status. Returns the status and the time."""
        return jobs.until(what, self.status, is_true, timeout), time.monotonic()

    def await_exits(self, containers, timeout):
        """Waits until all of these containers have ended. Returns their last exit codes."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            lines = podman("inspect", "--format={{.State.Status}} {{.State.ExitCode}}",
                           *containers).splitlines()
            if all(line.startswith("exited") for line in lines):
                return dict(zip(containers, (int(line.split()[1]) for line in lines)))
            time.sleep(0.05)
        raise AssertionError(f"not ended within {timeout} s: {list(zip(containers, lines))}")
