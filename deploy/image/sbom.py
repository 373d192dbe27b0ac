#!/usr/bin/env python3
"""Writes the bill of materials of an image's file system, and what scanners look for.

Usage: sbom.py TREE --name=NAME --version=VERSION [--cuda=DIR]

Writes TREE/usr/share/sbom/NAME.spdx.json (SPDX 2.3): each program and library with its
checksums, and the Debian package that it comes from. A file that no package of TREE has
was copied from this machine, by its name: the package's copyright file and its status
(/var/lib/dpkg/status.d) are copied after it. If dpkg does not know cuBLAS, the CUDA Toolkit in
the folder --cuda has its version, in a header, and its licence, which is copied.
SOURCE_DATE_EPOCH is the date of the document.
"""

import argparse
import collections
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import time

Package = collections.namedtuple(
    "Package", "name version architecture source source_version supplier")
CUBLAS = "nvidia-cublas"  # Name of the package of a cuBLAS that dpkg does not know.


def with_usr(path):
    """The path below /usr, where Debian's merged folders really are."""
    return "/usr" + path if path.startswith(("/lib", "/bin/", "/sbin/")) else path


class Database:
    """Packages that dpkg has installed below `root`."""

    def __init__(self, root):
        self.folder = os.path.join(root, "var/lib/dpkg")
        self.owners = {}
        for path in glob.glob(os.path.join(self.folder, "info/*.list")):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    self.owners[with_usr(line.strip())] = os.path.basename(path)[:-len(".list")]

    def query(self, *arguments):
        return subprocess.run(["dpkg-query", f"--admindir={self.folder}", *arguments],
                              check=True, capture_output=True, text=True).stdout

    def describe(self, name):
        *fields, maintainer = self.query(
            "-W", "-f=${Package}\t${Version}\t${Architecture}\t${source:Package}"
            "\t${source:Version}\t${Maintainer}", name).split("\t")
        return Package(*fields, "NVIDIA" if maintainer.endswith("@nvidia.com>") else "Debian")

    def owner(self, path):
        return self.owners.get(with_usr(path))


def programs_of(tree):
    """The paths of all ELF files in `tree`, without `tree`."""
    for folder, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path[len(tree):]


def copy_evidence(tree, host, package):
    """Copies what a scanner and a lawyer look for: the package's status and copyright."""
    folder = os.path.join(tree, "var/lib/dpkg/status.d")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, package.name), "w", encoding="utf-8") as file:
        file.write(host.query("-s", f"{package.name}:{package.architecture}"))
    doc = os.path.join(tree, "usr/share/doc", package.name)
    os.makedirs(doc, exist_ok=True)
    shutil.copyfile(f"/usr/share/doc/{package.name}/copyright", os.path.join(doc, "copyright"))


def cublas_of(tree, cuda):
    """The package of a cuBLAS that dpkg does not know. Copies its licence."""
    with open(os.path.join(cuda, "include/cublas_api.h"), encoding="utf-8") as file:
        numbers = dict(re.findall(r"#define CUBLAS_VER_(\w+) (\d+)", file.read()))
    version = ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH", "BUILD"))
    licences = [path for pattern in ("EULA.txt", "dist-info/nvidia_cublas-*/licenses/*")
                for path in glob.glob(os.path.join(cuda, pattern))]
    if not licences:
        raise SystemExit(f"sbom.py: {cuda} has no licence of cuBLAS (EULA.txt), which the image "
                         "must have")
    doc = os.path.join(tree, "usr/share/doc", CUBLAS)
    os.makedirs(doc, exist_ok=True)
    shutil.copyfile(licences[0], os.path.join(doc, "copyright"))
    return Package(CUBLAS, version, os.uname().machine, CUBLAS, version, "NVIDIA")


def find_packages(tree, cuda):
    """Two values: {path of a file: its package or None}, and all packages."""
    host = Database("/")
    own = Database(tree)
    described = {name: own.describe(name) for name in set(own.owners.values())}
    copied = {}
    files = {}
    for path in programs_of(tree):
        name = own.owner(path)
        if name:
            files[path] = described[name]
            continue
        name = next(filter(None, (
            host.owner(os.path.realpath(os.path.join(folder, os.path.basename(path))))
            for folder in (f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64",
                           f"{cuda}/lib64"))), None)
        if not name and cuda and os.path.basename(path).startswith("libcublas"):
            name = CUBLAS
            copied[name] = copied.get(name) or cublas_of(tree, cuda)
        elif name and name not in copied:
            copied[name] = host.describe(name)
            copy_evidence(tree, host, copied[name])
        files[path] = copied.get(name)
    return files, sorted({*described.values(), *copied.values()})


def identifier(kind, text):
    safe = "".join(c if c.isalnum() or c in ".-" else "-" for c in text)
    return f"SPDXRef-{kind}-{safe}"


def package_entry(package):
    purl = (f"pkg:deb/{package.supplier.lower()}/{package.name.replace('+', '%2B')}@"
            f"{package.version.replace(':', '%3A').replace('+', '%2B')}"
            f"?arch={package.architecture}&distro=debian-12")
    if package.name == CUBLAS:
        purl = f"pkg:generic/{CUBLAS}@{package.version}"
    return {"SPDXID": identifier("Package", package.name), "name": package.name,
            "versionInfo": package.version, "supplier": f"Organization: {package.supplier}",
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "sourceInfo": f"{package.source} {package.source_version}",
            "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
            "copyrightText": f"see /usr/share/doc/{package.name}/copyright",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER",
                              "referenceType": "purl", "referenceLocator": purl}]}


def file_entry(tree, path):
    with open(tree + path, "rb") as file:
        data = file.read()
    return {"SPDXID": identifier("File", path), "fileName": "." + path,
            "checksums": [{"algorithm": "SHA1",
                           "checksumValue": hashlib.sha1(data).hexdigest()},
                          {"algorithm": "SHA256",
                           "checksumValue": hashlib.sha256(data).hexdigest()}],
            "licenseConcluded": "NOASSERTION", "licenseInfoInFiles": ["NOASSERTION"],
            "copyrightText": "NOASSERTION"}


def document(tree, name, version, cuda):
    files, packages = find_packages(tree, cuda)
    entries = [file_entry(tree, path) for path in files]
    main = identifier("Package", name)
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", main)]
    relations += [(main, "DEPENDS_ON", identifier("Package", p.name)) for p in packages]
    relations += [(identifier("Package", package.name) if package else main, "CONTAINS",
                   identifier("File", path)) for path, package in files.items()]
    digest = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
    created = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", 0)))
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{version}",
        "documentNamespace": f"https://nereus.invalid/spdx/{name}-{version}-{digest}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", created),
                         "creators": ["Tool: deploy/image/sbom.py"]},
        "packages": [{"SPDXID": main, "name": name, "versionInfo": version,
                      "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                      "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
                      "copyrightText": "NOASSERTION"}]
                    + [package_entry(package) for package in packages],
        "files": entries,
        "relationships": [{"spdxElementId": a, "relationshipType": kind,
                           "relatedSpdxElement": b} for a, kind, b in relations],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree")
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--cuda", default="")
    arguments = parser.parse_args()
    made = document(arguments.tree.rstrip("/"), arguments.name, arguments.version, arguments.cuda)
    folder = os.path.join(arguments.tree, "usr/share/sbom")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{arguments.name}.spdx.json"), "w",
              encoding="utf-8") as file:
        json.dump(made, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
