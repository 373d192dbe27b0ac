#!/usr/bin/env python3
"""Makes from a rendered JobSet what other clusters take.

Usage: generate.py [--check]   writes trainer/ and components/no-jobset/ from base/;
                               with --check, compares them and exits with 1 if they differ
       generate.py --jobs      reads a render with a JobSet from standard input, and writes
                               it with Jobs and a Service in place of the JobSet

Needs kubectl (KUBECTL names another one) and Debian's python3-yaml.
"""

import copy
import os
import subprocess
import sys

import yaml

FOLDER = os.path.dirname(os.path.abspath(__file__))
NOTE = "# Made from base/ by deploy/kubernetes/generate.py: change that, and run it again.\n"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"


def render(folder):
    kubectl = os.environ.get("KUBECTL", "kubectl")
    return list(yaml.safe_load_all(subprocess.run(
        [kubectl, "kustomize", folder], check=True, capture_output=True, text=True).stdout))


def dump(objects):
    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data):
            return True

    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=100)


def the_jobset(objects):
    return next(item for item in objects if item["kind"] == "JobSet")


def claims_of(jobset):
    """The volume claims that JobSet would make: {name of the volume: claim}."""
    name = jobset["metadata"]["name"]
    return {template["metadata"]["name"]: {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{template['metadata']['name']}-{name}"},
        "spec": template["spec"]}
        for policy in jobset["spec"].get("volumeClaimPolicies", [])
        for template in policy["templates"]}


def jobs_of(jobset):
    """A Service and Indexed Jobs whose pods have the names and labels that JobSet gives."""
    name = jobset["metadata"]["name"]
    claims = claims_of(jobset)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
               "spec": {"clusterIP": "None", "publishNotReadyAddresses": True,
                        "selector": {JOBSET_NAME: name}}}
    jobs = []
    for role in jobset["spec"]["replicatedJobs"]:
        spec = copy.deepcopy(role["template"]["spec"])
        spec["completionMode"] = "Indexed"
        spec["template"]["metadata"]["labels"][JOBSET_NAME] = name
        pod = spec["template"]["spec"]
        pod["subdomain"] = name
        mounted = {mount["name"] for container in pod["containers"]
                   for mount in container.get("volumeMounts", [])}
        for volume in sorted(mounted & set(claims)):
            pod.setdefault("volumes", []).append(
                {"name": volume, "persistentVolumeClaim": {
                    "claimName": claims[volume]["metadata"]["name"]}})
        jobs.append({"apiVersion": "batch/v1", "kind": "Job",
                     "metadata": {"name": f"{name}-{role['name']}-0",
                                  "labels": dict(jobset["metadata"].get("labels", {}))},
                     "spec": spec})
    made = [service, *claims.values(), *jobs]
    if "namespace" in jobset["metadata"]:
        for item in made:
            item["metadata"]["namespace"] = jobset["metadata"]["namespace"]
    return made


def runtime_of(objects):
    """The ClusterTrainingRuntime. It cannot bring a ConfigMap, so each pod names the
    variables itself. A TrainJob changes the container `node` of the step `trainer`."""
    spec = copy.deepcopy(the_jobset(objects)["spec"])
    options = next(item for item in objects if item["kind"] == "ConfigMap"
                   and item["metadata"]["name"] == "nereus")["data"]
    workers = next(role for role in spec["replicatedJobs"] if role["name"] == "worker")
    for role in spec["replicatedJobs"]:
        pod = role["template"]["spec"]["template"]["spec"]
        # The name of the TrainJob takes the place of the JobSet's.
        pod.pop("topologySpreadConstraints", None)
        container = pod["containers"][0]
        del container["envFrom"]
        container["env"] = [{"name": name, "value": value}
                            for name, value in options.items()] + container["env"]
    workers["template"]["metadata"] = {
        "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    job = workers["template"]["spec"]
    job["template"]["spec"]["containers"][0]["name"] = "node"
    for rule in job["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            rule["onExitCodes"]["containerName"] = "node"
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime",
            "metadata": {"name": "nereus"},
            "spec": {"mlPolicy": {"numNodes": job["parallelism"]},
                     "template": {"spec": spec}}}


def generated():
    """The text of each generated file."""
    base = render(os.path.join(FOLDER, "base"))
    return {"trainer/runtime.yaml": NOTE + dump([runtime_of(base)]),
            "components/no-jobset/jobs.yaml": NOTE + dump(jobs_of(the_jobset(base)))}


def main(arguments):
    if arguments == ["--jobs"]:
        objects = list(yaml.safe_load_all(sys.stdin))
        jobset = the_jobset(objects)
        print(dump([item for item in objects if item is not jobset] + jobs_of(jobset)), end="")
        return 0
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    code = 0
    for name, text in generated().items():
        path = os.path.join(FOLDER, name)
        if not arguments:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            continue
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                print(f"{path} differs from base/: run deploy/kubernetes/generate.py")
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
