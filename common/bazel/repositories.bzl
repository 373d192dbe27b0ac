"""Bazel repositories that Nereus needs: some are of Debian's packages, some are its own folders."""

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
    """Declares the repositories that Nereus needs. Its own WORKSPACE and its users' ones call this.

    If a WORKSPACE has already declared a repository, that one stays. Nothing is downloaded.
    """
    # Bazel's own BUILD files load the rules of rules_cc. Debian's bazel-rules-cc is too new for
    # Bazel 4.2, so the folder rules_cc forwards them to Bazel's built-in rules.
    if _missing("rules_cc"):
        _folder_of_nereus(name = "rules_cc", folder = "rules_cc")

    # `bazel test` needs the labels of a coverage tool, even if it collects no coverage.
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

    # The CUDA Toolkit, which is optional.
    if _missing("cuda"):
        cuda_toolkit(name = "cuda")
