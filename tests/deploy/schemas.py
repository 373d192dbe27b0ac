"""Checks Kubernetes objects against the schemas of their kinds, and refuses unknown keys.

The schemas of Kubernetes come with the package kubernetes-validate, those of other kinds with
CRDs. Rules of a CRD that are programs (x-kubernetes-validations) are not checked.
"""

import json
import re
import zipfile

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

# The oldest version that docs/kubernetes.md names. "strict" schemas refuse unknown keys.
FOLDER = "kubernetes_validate/kubernetes-json-schema/v1.35.0-local-strict"
METADATA = ("https://kubernetes.io/api/_definitions.json"
            "#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")


def close(schema):
    """Returns this schema of a CRD, but its objects have only the keys that it names."""
    closed = dict(schema)
    if "properties" in schema:
        closed["properties"] = {key: close(part) for key, part in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            closed[key] = close(schema[key])
    if schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


class Schemas:
    """The schemas in this wheel of kubernetes-validate, and those of these CRDs."""

    def __init__(self, wheel, crds):
        self._wheel = zipfile.ZipFile(wheel)
        self._registry = Resource.from_contents(self._read("_definitions.json")) @ Registry()
        self._crds = {(f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]):
                      version["schema"]["openAPIV3Schema"]
                      for crd in crds for version in crd["spec"]["versions"]}
        self._validators = {}  # {(apiVersion, kind): validator or None}, of the kinds so far.

    def findings(self, objects):
        """What the schemas find in these objects: a text for each finding."""
        found = []
        for item in objects:
            version, kind = item["apiVersion"], item["kind"]
            if (version, kind) not in self._validators:
                self._validators[version, kind] = self._validator(version, kind)
            validator = self._validators[version, kind]
            if validator is None:
                found.append(f"{kind}: there is no schema of it in {version}")
            else:
                found += [f"{kind}: {error.json_path} {error.message}"
                          for error in validator.iter_errors(item)]
        return found

    def _read(self, name):
        return json.loads(self._wheel.read(f"{FOLDER}/{name}"))

    def _validator(self, version, kind):
        """The validator of a kind, or None if there is no schema."""
        if (version, kind) in self._crds:
            schema = close(self._crds[version, kind])
            # A CRD leaves an object's own metadata open.
            schema["properties"]["metadata"] = {"$ref": METADATA}
        else:
            # A file is named by the first word of its group. Its schema has the whole group.
            group = re.sub(r"[.][^/]*", "", version).replace("/", "-")
            try:
                schema = self._read(f"{kind.lower()}-{group}.json")
            except KeyError:  # The wheel has no such file.
                return None
        return Draft202012Validator(schema, registry=self._registry)
