"""Makes the repository @cuda from the CUDA Toolkit of this machine; without headers if it has none.
"""

_BUILD = """
# System headers: they come without warnings. None without a toolkit.
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/*"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _cuda_toolkit_impl(context):
    home = context.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = context.path(home + "/include/cuda_runtime_api.h").exists
    context.file("toolkit.bzl", "\n".join([
        "HAS_CUDA = %s" % found,
        'CUDA_HOME = "%s"' % home,
        "",
    ]))
    context.file("BUILD", _BUILD)
    if found:
        context.symlink(home + "/include", "include")

cuda_toolkit = repository_rule(
    doc = """Finds the toolkit in $CUDA_HOME, or in /usr/local/cuda.

@cuda//:toolkit.bzl says HAS_CUDA and CUDA_HOME.""",
    implementation = _cuda_toolkit_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
