"""Renders all manifests, and checks them against schemas and against our own rules."""

import copy
import glob
import os
import re
import subprocess

import pytest
import yaml
from conftest import COMPONENTS, INDEX, KUBERNETES, ROOT, SHARED, load

OVERLAYS = ["base", "example", "combined", *SHARED, *COMPONENTS]
CRDS = ["jobsets.jobset.x-k8s.io", "podmonitors.monitoring.coreos.com",
        "prometheusrules.monitoring.coreos.com",
        "clustertrainingruntimes.trainer.kubeflow.org", "trainjobs.trainer.kubeflow.org"]
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
# The one folder of a node that workers may have, of which they see one folder.
NODE_VOLUME = {"name": "share", "hostPath": {"path": "/dev/shm", "type": "Directory"}}
NODE_MOUNT = {"name": "share", "mountPath": "/share", "subPath": "nereus"}


@pytest.fixture(scope="session")
def crds():
    """The CRDs that the manifests need, from the folder NEREUS_CRDS and the folders in it."""
    found = {}
    folder = os.environ.get("NEREUS_CRDS", "")
    for path in glob.glob(os.path.join(folder, "**", "*.yaml"), recursive=True) if folder else []:
        with open(path, encoding="utf-8") as file:
            found.update((item["metadata"]["name"], item) for item in load(file.read())
                         if isinstance(item, dict)
                         and item.get("kind") == "CustomResourceDefinition")
    missing = [name for name in CRDS if name not in found]
    if missing:
        pytest.skip(f"NEREUS_CRDS names no folder with the CRDs {', '.join(missing)}")
    return [found[name] for name in CRDS]


@pytest.fixture(scope="session")
def findings(crds):
    """A function: what the schemas find in these objects."""
    if "KUBERNETES_SCHEMAS" not in os.environ:
        pytest.skip(f"there are no packages with schemas: {INDEX}")
    from schemas import Schemas  # Imports jsonschema, which is among these packages.
    return Schemas(os.environ["KUBERNETES_SCHEMAS"], crds).findings


@pytest.fixture(scope="session")
def all_renders(renders, render):
    """The renders with a whole job, that for Kubeflow Trainer, and what share/ has besides."""
    with open(os.path.join(KUBERNETES, "components", "share", "time-slicing.yaml"),
              encoding="utf-8") as file:
        return {**renders, "trainer": render("trainer"), "time-slicing": load(file.read())}


def of_kind(objects, kind):
    return [item for item in objects if item["kind"] == kind]


def options_of(objects):
    """The options of the job: the data of its ConfigMap."""
    [options] = [item["data"] for item in of_kind(objects, "ConfigMap")
                 if item["metadata"]["name"] == "nereus"]
    return options


def roles_of(objects):
    """{role: template of the Job} of a JobSet, of Jobs, or of a training runtime."""
    for item in objects:
        if item["kind"] == "JobSet":
            return {r["name"]: r["template"] for r in item["spec"]["replicatedJobs"]}
        if item["kind"] == "ClusterTrainingRuntime":
            return {r["name"]: r["template"]
                    for r in item["spec"]["template"]["spec"]["replicatedJobs"]}
    return {item["metadata"]["name"].split("-")[1]: item for item in of_kind(objects, "Job")}


def breaches(objects):
    """Our own rules for pods, and where the objects break them."""
    version = re.search(r'kVersion\[\] = "(.*)"', open(
        os.path.join(ROOT, "common/base/version.h"), encoding="utf-8").read())[1]
    found = []

    def demand(truth, what):
        if not truth:
            found.append(what)

    roles = roles_of(objects)
    demand(set(roles) >= {"coordinator", "worker"}, f"roles {sorted(roles)}")
    for role, job in roles.items():
        pod = job["spec"]["template"]["spec"]
        outer = pod.get("securityContext", {})
        demand(outer.get("runAsNonRoot") is True, f"{role}: runAsNonRoot")
        demand(outer.get("runAsUser") == 65532, f"{role}: runAsUser")
        demand(outer.get("seccompProfile") == {"type": "RuntimeDefault"}, f"{role}: seccomp")
        demand(pod.get("automountServiceAccountToken") is False, f"{role}: token")
        demand(pod.get("enableServiceLinks") is False, f"{role}: service links")
        demand(pod.get("restartPolicy") == "Never", f"{role}: restartPolicy of the pod")
        demand(not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")),
               f"{role}: a namespace of the node")
        demand(not any("hostPath" in volume and (role != "worker" or volume != NODE_VOLUME)
                       for volume in pod.get("volumes", [])), f"{role}: hostPath")
        permanent = {rule["onExitCodes"]["containerName"]: rule["onExitCodes"]["values"]
                     for rule in job["spec"]["podFailurePolicy"]["rules"]
                     if "onExitCodes" in rule}
        for container in pod["containers"]:
            name = f"{role}/{container['name']}"
            inner = container.get("securityContext", {})
            demand(inner.get("allowPrivilegeEscalation") is False, f"{name}: escalation")
            demand(inner.get("readOnlyRootFilesystem") is True, f"{name}: root file system")
            demand(inner.get("capabilities") == {"drop": ["ALL"]}, f"{name}: capabilities")
            demand(not inner.get("privileged"), f"{name}: privileged")
            demand(all(mount == NODE_MOUNT for mount in container.get("volumeMounts", [])
                       if mount["name"] == NODE_VOLUME["name"]),
                   f"{name}: more of the node's folder than it needs")
            demand("memory" in container.get("resources", {}).get("limits", {}),
                   f"{name}: memory limit")
            demand(container["image"].endswith(f":{version}"),
                   f"{name}: image {container['image']} is not pinned to {version}")
            ports = {port["containerPort"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                demand(container[probe]["grpc"]["port"] in ports, f"{name}: port of {probe}")
            [rule] = container["restartPolicyRules"]
            demand(rule["exitCodes"] == {"operator": "NotIn",
                                         "values": [0, *permanent.get(container["name"], [])]},
                   f"{name}: restarts and the Job's failure policy differ on exit codes")
    for budget in of_kind(objects, "PodDisruptionBudget"):
        role = budget["spec"]["selector"]["matchLabels"]["nereus.dev/role"]
        demand(budget["spec"]["minAvailable"] == roles[role]["spec"]["parallelism"] - 1,
               f"PodDisruptionBudget: minAvailable is not the number of {role} pods minus one")
    return found


def test_generated_files_are_those_of_the_base(kubectl):
    done = subprocess.run([os.path.join(KUBERNETES, "generate.py"), "--check"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [*OVERLAYS, "trainer", "time-slicing"])
def test_objects_fit_the_schemas(all_renders, findings, name):
    assert findings(all_renders[name]) == []


def test_training_runtime_is_a_jobset(render, findings):
    [runtime] = of_kind(render("trainer"), "ClusterTrainingRuntime")
    [job] = of_kind(render("trainer"), "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert findings([{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                      "metadata": {"name": "train"},
                      **runtime["spec"]["template"]}]) == []


@pytest.mark.parametrize("name", [*OVERLAYS, "trainer"])
def test_pods_are_hardened_and_pinned(all_renders, name):
    assert breaches(all_renders[name]) == []


@pytest.mark.parametrize("name", OVERLAYS)
def test_selectors_and_numbers_agree(renders, name):
    objects = renders[name]
    options = options_of(objects)
    roles = roles_of(objects)
    servers = roles.get("server", roles["worker"])
    assert int(options["NEREUS_SERVERS"]) == servers["spec"]["completions"]
    assert int(options["NEREUS_WORKERS"]) == roles["worker"]["spec"]["completions"]
    [policy] = of_kind(objects, "NetworkPolicy")
    for kind, selector in [("policy", policy["spec"]["podSelector"]),
                           *((kind, item["spec"]["selector"])
                             for kind in ("PodDisruptionBudget", "PodMonitor")
                             for item in of_kind(objects, kind))]:
        assert selector["matchLabels"][JOBSET_NAME] == "train", kind
    opened, *opened_to_others = ({port["port"] for port in rule["ports"]}
                                 for rule in policy["spec"]["ingress"])
    heard = {port["containerPort"] for job in roles.values()
             for container in job["spec"]["template"]["spec"]["containers"]
             for port in container["ports"]}
    assert opened == heard
    # Pages that only answer questions.
    assert all(ports <= {7002, 7012} for ports in opened_to_others)


def test_variables_are_flags_of_the_programs(renders):
    flags = "".join(subprocess.run([os.path.join(ROOT, "bazel-bin", program), "--help"],
                                   capture_output=True, text=True, check=True).stdout
                    for program in ("server/nereus-server", "worker/trainer/nereus-worker"))
    for name, objects in renders.items():
        names = set(options_of(objects))
        for job in roles_of(objects).values():
            for container in job["spec"]["template"]["spec"]["containers"]:
                names |= {entry["name"] for entry in container["env"]}
        unknown = {name for name in names if name.startswith("NEREUS_")
                   and f"(Env:{name})" not in flags}
        assert not unknown, name


def test_jobs_of_a_render_have_the_claims(renders, findings):
    done = subprocess.run([os.path.join(KUBERNETES, "generate.py"), "--jobs"],
                          input=yaml.safe_dump_all(renders["example"]), capture_output=True,
                          text=True, check=True)
    objects = load(done.stdout)
    assert findings(objects) == []
    assert not of_kind(objects, "JobSet") and breaches(objects) == []
    claims = {item["metadata"]["name"] for item in of_kind(objects, "PersistentVolumeClaim")}
    used = {volume["persistentVolumeClaim"]["claimName"]
            for job in of_kind(objects, "Job")
            for volume in job["spec"]["template"]["spec"].get("volumes", [])}
    assert claims == used == {"checkpoints-train", "state-train"}


# A fault, the object with the fault, and what finds it: a part of a finding.
def _pod(objects, role="worker"):
    return roles_of(objects)[role]["spec"]["template"]["spec"]


SCHEMA_FAULTS = {
    "typing error in a pod": ("base", "enableServiceLink", lambda objects: _pod(
        objects).update(enableServiceLink=False)),
    "text for a number": ("base", "parallelism", lambda objects: roles_of(
        objects)["server"]["spec"].update(parallelism="two")),
    "unknown action": ("base", "action", lambda objects: of_kind(objects, "JobSet")[0]["spec"][
        "failurePolicy"]["rules"][0].update(action="FailJob")),
    "no image's name": ("base", "'name' is a required", lambda objects: _pod(
        objects)["containers"][0].pop("name")),
    "unknown key of a policy": ("base", "ingres", lambda objects: of_kind(
        objects, "NetworkPolicy")[0]["spec"].update(ingres=[])),
    "unknown key of a budget": ("base", "minAvailible", lambda objects: of_kind(
        objects, "PodDisruptionBudget")[0]["spec"].update(minAvailible=1)),
    "unknown key of a monitor": ("monitoring", "ports", lambda objects: of_kind(
        objects, "PodMonitor")[0]["spec"]["podMetricsEndpoints"][0].update(ports="x")),
    "unknown key of a rule": ("monitoring", "labls", lambda objects: of_kind(
        objects, "PrometheusRule")[0]["spec"]["groups"][0]["rules"][0].update(labls={})),
    "unknown key of a Job's pod": ("no-jobset", "drp", lambda objects: _pod(
        objects)["containers"][0]["securityContext"]["capabilities"].update(drp=[])),
    "unknown key of the metadata": ("base", "label", lambda objects: of_kind(
        objects, "JobSet")[0]["metadata"].update(label={})),
    "unknown key of a runtime's pod": ("trainer", "enableServiceLink", lambda objects: _pod(
        objects).update(enableServiceLink=False)),
    "unknown key of a runtime": ("trainer", "numNode", lambda objects: of_kind(
        objects, "ClusterTrainingRuntime")[0]["spec"]["mlPolicy"].update(numNode=4)),
    "unknown key of a TrainJob": ("trainer", "runtimes", lambda objects: of_kind(
        objects, "TrainJob")[0]["spec"].update(runtimes=[])),
    "no name of a TrainJob's runtime": ("trainer", "'name' is a required", lambda objects: of_kind(
        objects, "TrainJob")[0]["spec"]["runtimeRef"].pop("name")),
    "unknown version of a CRD's kind": ("base", "v1beta1", lambda objects: of_kind(
        objects, "JobSet")[0].update(apiVersion="jobset.x-k8s.io/v1beta1")),
    "unknown version": ("base", "policy/v2", lambda objects: of_kind(
        objects, "PodDisruptionBudget")[0].update(apiVersion="policy/v2")),
    "wrong domain of a group": ("base", "networking.x-k8s.io", lambda objects: of_kind(
        objects, "NetworkPolicy")[0].update(apiVersion="networking.x-k8s.io/v1")),
}


@pytest.mark.parametrize("fault", SCHEMA_FAULTS)
def test_schemas_find(all_renders, findings, fault):
    overlay, finding, plant = SCHEMA_FAULTS[fault]
    objects = copy.deepcopy(all_renders[overlay])
    plant(objects)
    found = findings(objects)
    assert len(found) == 1 and finding in found[0]


def _container(objects):
    return _pod(objects)["containers"][0]


# Faults in the component share alone.
SHARE_FAULTS = {
    "hostPath": lambda o: _pod(o)["volumes"][0]["hostPath"].update(path="/"),
    "coordinator: hostPath": lambda o: _pod(o, "coordinator")["volumes"].append(NODE_VOLUME),
    "more of the node's folder": lambda o: _container(o)["volumeMounts"][0].pop("subPath"),
}
RULE_FAULTS = {
    "runAsNonRoot": lambda o: _pod(o)["securityContext"].pop("runAsNonRoot"),
    "seccomp": lambda o: _pod(o)["securityContext"].pop("seccompProfile"),
    "token": lambda o: _pod(o).pop("automountServiceAccountToken"),
    "service links": lambda o: _pod(o).pop("enableServiceLinks"),
    "hostPath": lambda o: _pod(o).update(volumes=[{"name": "x", "hostPath": {"path": "/"}}]),
    "escalation": lambda o: _container(o)["securityContext"].pop("allowPrivilegeEscalation"),
    "root file system": lambda o: _container(o)["securityContext"].update(
        readOnlyRootFilesystem=False),
    "capabilities": lambda o: _container(o)["securityContext"]["capabilities"].update(
        add=["NET_ADMIN"]),
    "memory limit": lambda o: _container(o).pop("resources"),
    "is not pinned": lambda o: _container(o).update(image="nereus-worker:latest"),
    "port of livenessProbe": lambda o: _container(o)["livenessProbe"]["grpc"].update(port=1),
    "differ on exit codes": lambda o: _container(o)["restartPolicyRules"][0][
        "exitCodes"]["values"].remove(4),
    "minAvailable": lambda o: of_kind(o, "PodDisruptionBudget")[0]["spec"].update(
        minAvailable=2),
}


@pytest.mark.parametrize("name, faults, fault", [
    *(("base", RULE_FAULTS, fault) for fault in RULE_FAULTS),
    *(("share", SHARE_FAULTS, fault) for fault in SHARE_FAULTS)])
def test_rules_find(renders, name, faults, fault):
    objects = copy.deepcopy(renders[name])
    faults[fault](objects)
    found = breaches(objects)
    assert len(found) == 1 and fault in found[0]
