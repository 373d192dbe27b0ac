"""The repositories that Nereus needs: of Debian's packages and of its own folders."""

load(":cuda_toolkit.bzl", "cuda_toolkit")

def _folder_of_nereus_impl(context):
    folder = context.path(Label("//:WORKSPACE")).dirname.get_child("common")
    folder = folder.get_child("bazel").get_child(context.attr.folder)
    for child in folder.readdir():
        context.symlink(child, child.basename)

_folder_of_nereus = repository_rule(
    doc = "A folder beside this file.",
    implementation = _folder_of_nereus_impl,
    attrs = {"folder": attr.string(mandatory = True)},
    local = True,
)

def _missing(name):
    return not native.existing_rule(name)

def nereus_repositories():
    """Declares what Nereus needs, for its own WORKSPACE and for those of its users.

    A repository that is there already stays as it is. Nothing is downloaded.
    """
    # Bazel's own BUILD files load these names; Debian's bazel-rules-cc is too new
    # for Bazel 4.2, so this forwards them to the native rules.
    if _missing("rules_cc"):
        _folder_of_nereus(name = "rules_cc", folder = "rules_cc")

    # `bazel test` resolves a coverage tool even when no coverage is collected.
    if _missing("remote_coverage_tools"):
        _folder_of_nereus(name = "remote_coverage_tools", folder = "coverage_tools")

    # Debian: bazel-rules-java, bazel-rules-proto, bazel-platforms, bazel-skylib.
    for name, path in {
        "rules_java": "/usr/share/bazel/rules/java",
        "rules_proto": "/usr/share/bazel/rules/proto",
        "platforms": "/usr/share/bazel/tools/platforms",
        "bazel_skylib": "/usr/share/bazel/tools/skylib",
    }.items():
        if _missing(name):
            native.local_repository(name = name, path = path)

    # Whether there is a CUDA Toolkit, and where; it is optional.
    if _missing("cuda"):
        cuda_toolkit(name = "cuda")
