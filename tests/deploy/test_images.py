"""Builds the images, and checks what is in them and how they run."""

import hashlib
import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT, digests
from pods import podman

BYTES_MAX = {"nereus-server": 35e6, "nereus-worker": 80e6}
PROGRAMS = {"nereus-server": ["nereus-server", "nereusctl"], "nereus-worker": ["nereus-worker"],
            "nereus-worker-cuda": ["nereus-worker"]}
VERSION = re.search(r'kVersion\[\] = "(.*)"', open(
    os.path.join(ROOT, "common/base/version.h"), encoding="utf-8").read())[1]
HARDENED = ["--rm", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges",
            "--network=none"]


@pytest.fixture(scope="session")
def trees(images):
    """{name of an image: the folder where it is mounted}"""
    mounted = {name: podman("image", "mount", f"{name}:{VERSION}") for name in images}
    yield mounted
    podman("image", "unmount", *(f"{name}:{VERSION}" for name in mounted))


def elf_files(tree):
    found = set()
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                with open(path, "rb") as file:
                    if file.read(4) == b"\x7fELF":
                        found.add(path)
    return found


def faults_of_sbom(tree, name):
    """What the bill of materials lacks or has wrong."""
    with open(os.path.join(tree, "usr/share/sbom", f"{name}.spdx.json"), encoding="utf-8") as file:
        bill = json.load(file)
    listed = {entry["fileName"]: entry for entry in bill["files"]}
    packages = {entry["SPDXID"]: entry for entry in bill["packages"]}
    container = {relation["relatedSpdxElement"]: packages[relation["spdxElementId"]]["name"]
                 for relation in bill["relationships"]
                 if relation["relationshipType"] == "CONTAINS"}
    faults = []
    for path in sorted(elf_files(tree)):
        short = "." + path[len(tree):]
        if short not in listed:
            faults.append(f"{short} is not listed")
            continue
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        if digest not in [c["checksumValue"] for c in listed[short]["checksums"]]:
            faults.append(f"{short} has another checksum")
        is_ours = os.path.basename(path) in PROGRAMS[name]
        if (container[listed[short]["SPDXID"]] == name) != is_ours:
            faults.append(f"{short} is of {container[listed[short]['SPDXID']]}")
    for entry in packages.values():
        if entry["name"] == name:
            continue
        status = os.path.join(tree, "var/lib/dpkg/status.d", entry["name"])
        notice = os.path.join(tree, "usr/share/doc", entry["name"], "copyright")
        if not os.path.getsize(notice):
            faults.append(f"{entry['name']} has no copyright file")
        if "cublas" in entry["name"]:
            if entry["supplier"] != "Organization: NVIDIA":
                faults.append(f"{entry['name']} is of {entry['supplier']}")
            continue
        with open(status, encoding="utf-8") as file:
            if f"Version: {entry['versionInfo']}\n" not in file.read():
                faults.append(f"{entry['name']} has another version")
    return faults


@pytest.mark.parametrize("name", BYTES_MAX)
def test_programs_run_hardened(images, name):
    for program in PROGRAMS[name]:
        assert podman("run", *HARDENED, f"--entrypoint=/usr/bin/{program}",
                      f"{name}:{VERSION}", "--version").endswith(VERSION)
    [config] = json.loads(podman("image", "inspect", f"{name}:{VERSION}"))
    assert config["Config"]["User"] == "65532:65532"
    assert config["Config"]["Entrypoint"] == [f"/usr/bin/{name}"]
    assert config["Labels"]["org.opencontainers.image.version"] == VERSION
    assert re.fullmatch(r"[0-9a-f]{40}", config["Labels"]["org.opencontainers.image.revision"])


@pytest.mark.parametrize("name", BYTES_MAX)
def test_images_are_small_and_have_no_shell(images, trees, name):
    assert int(podman("image", "inspect", "--format={{.Size}}",
                      f"{name}:{VERSION}")) <= BYTES_MAX[name]
    assert sorted(os.listdir(os.path.join(trees[name], "usr/bin"))) == PROGRAMS[name]


@pytest.mark.parametrize("name", BYTES_MAX)
def test_bill_of_materials_lists_every_file(trees, name):
    assert len(elf_files(trees[name])) > 50
    assert faults_of_sbom(trees[name], name) == []


def test_bill_of_materials_that_lacks_a_library_is_found(trees, tmp_path):
    tree = str(tmp_path / "tree")
    shutil.copytree(trees["nereus-server"], tree, symlinks=True)
    folder = os.path.join(tree, "usr/lib/x86_64-linux-gnu")
    shutil.copy(os.path.join(folder, "libz.so.1"), os.path.join(folder, "libplanted.so.1"))
    with open(os.path.join(folder, "libz.so.1"), "ab") as file:
        file.write(b"changed")
    assert [re.sub(".*/", "", fault) for fault in faults_of_sbom(tree, "nereus-server")] == [
        "libplanted.so.1 is not listed", "libz.so.1 has another checksum"]


def test_two_builds_give_the_same_images(images, tmp_path):
    with open(tmp_path / "storage.conf", "w", encoding="utf-8") as file:
        file.write(f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/store"\n'
                   f'runroot = "{tmp_path}/run"\n')
    again = subprocess.run(
        [os.path.join(ROOT, "deploy", "image", "build.sh")], capture_output=True, text=True,
        check=True, env={**os.environ, "CONTAINERS_STORAGE_CONF": f"{tmp_path}/storage.conf"})
    assert digests(again.stdout) == images
    assert len(images) == 2


def build_large(name):
    if os.environ.get("NEREUS_TEST_LARGE_IMAGES") != "1":
        pytest.skip("takes minutes: NEREUS_TEST_LARGE_IMAGES=1 asks for it")
    subprocess.run([os.path.join(ROOT, "deploy", "image", "build.sh"), name], check=True)


def test_the_image_for_gpus_is_whole_and_says_that_there_is_no_gpu():
    build_large("worker-cuda")
    name = "nereus-worker-cuda"
    tree = podman("image", "mount", f"{name}:{VERSION}")
    try:
        assert sorted(os.listdir(os.path.join(tree, "usr/bin"))) == PROGRAMS[name]
        assert any("libcublas.so" in path for path in elf_files(tree))
        assert faults_of_sbom(tree, name) == []
    finally:
        podman("image", "unmount", f"{name}:{VERSION}")
    done = subprocess.run(
        ["podman", "run", *HARDENED, f"{name}:{VERSION}", "--device=cuda:0", "--model=mlp",
         "--coordinator=127.0.0.1:1"], capture_output=True, text=True, check=False)
    assert done.returncode == 75, done.stderr
    assert "this needs a GPU of NVIDIA and a driver" in done.stderr


def test_pytorch_trains_in_its_image():
    build_large("torch")
    example = os.path.join(ROOT, "worker/python/examples/mnist_torch.py")
    mnist = os.environ["NEREUS_MNIST_DIR"]
    output = podman("run", *HARDENED, f"--volume={example}:/train.py:ro",
                    f"--volume={mnist}:/data:ro", f"nereus-torch:{VERSION}", "nereusctl", "run",
                    "-np", "2", "--", "python3", "/train.py", "--data=/data", "--epochs=2")
    assert float(re.findall(r"accuracy ([\d.]+)", output)[-1]) > 90, output
