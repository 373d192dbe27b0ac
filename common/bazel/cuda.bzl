"""Code for GPUs. Nothing else of the project is changed by it:

  bazel build --config=cuda //...   with the CUDA Toolkit: builds what is for GPUs, too
  bazel build //...                 leaves it out

Kernels are tested on the CPU as well, wherever the toolkit's headers are, by an
emulation (tests/gpu/cuda_emulation.h).
"""

load("@cuda//:toolkit.bzl", "CUDA_HOME", "HAS_CUDA")
load("@rules_cc//cc:defs.bzl", "cc_library")
load(":grpc.bzl", "source_root")

# Of the A100 and the H100 families, and what later GPUs compile for themselves.
# The same arithmetic must give the same bits as on a CPU: so no contraction.
NVCC_FLAGS = " ".join([
    "-std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -lineinfo",
    "-gencode arch=compute_80,code=sm_80",
    "-gencode arch=compute_90,code=[sm_90,compute_90]",
    "-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off",
    "-Xptxas=-warn-spills,-warn-lmem-usage,-Werror",
])

# Incompatible, and so left out of //..., but with --config=cuda.
CUDA_ONLY = select({
    "//common/bazel:with_cuda": [],
    "//conditions:default": ["@platforms//:incompatible"],
})

# For code without kernels, which the host's compiler compiles.
NEEDS_CUDA_HEADERS = [] if HAS_CUDA else ["@platforms//:incompatible"]

def gpu_library(name, cuda_deps, deps = [], **kwargs):
    """A cc_library of the host's code that uses a GPU, and `name`_emulated.

    Args:
      name: the library, for --config=cuda.
      cuda_deps: those of which there are two, the other one `_emulated`.
      deps: of both.
      **kwargs: passed to both.
    """
    cc_library(
        name = name,
        target_compatible_with = CUDA_ONLY,
        deps = deps + cuda_deps + [
            "//common/bazel:cudart",
            "@cuda//:headers",
        ],
        **kwargs
    )
    cc_library(
        name = name + "_emulated",
        target_compatible_with = NEEDS_CUDA_HEADERS,
        deps = deps + [dep + "_emulated" for dep in cuda_deps] + [
            "//tests/gpu:cuda_emulation",
            "@cuda//:headers",
        ],
        **dict(kwargs, testonly = True)
    )

def gpu_test(name, cuda_deps = [], deps = [], tags = [], **kwargs):
    """A cc_test on a GPU, skipped where there is none, and the same emulated.

    Args:
      name: X_test; the other one is X_emulation_test.
      cuda_deps: those of which there are two, the other one `_emulated`.
      deps: of both.
      tags: of both.
      **kwargs: passed to both.
    """
    native.cc_test(
        name = name,
        tags = tags + ["gpu"],
        target_compatible_with = CUDA_ONLY,
        deps = deps + cuda_deps + ["//common/bazel:cudart"],
        **kwargs
    )
    native.cc_test(
        name = name.replace("_test", "_emulation_test"),
        tags = tags,
        target_compatible_with = NEEDS_CUDA_HEADERS,
        deps = deps + [dep + "_emulated" for dep in cuda_deps] + ["//tests/gpu:cuda_emulation"],
        **kwargs
    )

def cuda_library(name, src, hdrs, deps = [], real_deps = [], emulated_deps = [], **kwargs):
    """A cc_library of one .cu file, and `name`_emulated, the same for the CPU.

    Args:
      name: the library, for --config=cuda.
      src: the .cu file.
      hdrs: its headers.
      deps: of both.
      real_deps: of the library alone.
      emulated_deps: of the other one alone.
      **kwargs: passed to both.
    """
    native.genrule(
        name = name + "_object",
        srcs = [src] + native.glob(["*.h"]),
        outs = [name + ".o"],
        cmd = "%s/bin/nvcc %s -I%s -c $(location %s) -o $@" % (
            CUDA_HOME,
            NVCC_FLAGS,
            source_root(),
            src,
        ),
        target_compatible_with = CUDA_ONLY,
    )
    cc_library(
        name = name,
        srcs = [name + ".o"],
        hdrs = hdrs,
        target_compatible_with = CUDA_ONLY,
        deps = deps + real_deps + [
            "//common/bazel:cudart",
            "@cuda//:headers",
        ],
        **kwargs
    )
    native.genrule(
        name = name + "_emulated_source",
        srcs = [src],
        outs = [name + "_emulated.cc"],
        cmd = "cp $(location %s) $@" % src,
    )
    cc_library(
        name = name + "_emulated",
        testonly = True,
        srcs = [name + "_emulated.cc"],
        hdrs = hdrs,
        copts = [
            "-include tests/gpu/cuda_emulation.h",
            "-Wno-unknown-pragmas",
        ],
        target_compatible_with = NEEDS_CUDA_HEADERS,
        deps = deps + emulated_deps + ["//tests/gpu:cuda_emulation"],
        **kwargs
    )
