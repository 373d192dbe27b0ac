"""Targets with code for GPUs. The other targets are the same with and without CUDA:

  bazel build --config=cuda //...   builds the code for GPUs, too; needs the CUDA Toolkit
  bazel build //...                 leaves the code for GPUs out

On a machine with the toolkit's headers, tests also run kernels on the CPU, on an emulation of
CUDA (tests/gpu/cuda_emulation.h). The libraries for these tests end in `_emulated`.
"""

load("@cuda//:toolkit.bzl", "CUDA_HOME", "HAS_CUDA")
load(":grpc.bzl", "source_root")
load(":precompiled.bzl", "cc_library", "cc_test")

# Flags of nvcc. The code is for the GPUs of the A100 family (sm_80) and of the H100 family (sm_90);
# later GPUs compile the intermediate code (compute_90) for themselves. --fmad=false and
# -ffp-contract=off forbid fused multiply-adds, because the bits must be those of the CPU's code.
NVCC_FLAGS = " ".join([
    "-std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -lineinfo",
    "-gencode arch=compute_80,code=sm_80",
    "-gencode arch=compute_90,code=[sm_90,compute_90]",
    "-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off",
    "-Xptxas=-warn-spills,-warn-lmem-usage,-Werror",
])

# For targets that need --config=cuda: without it, Bazel leaves them out of //...
CUDA_ONLY = select({
    "//common/bazel:with_cuda": [],
    "//conditions:default": ["@platforms//:incompatible"],
})

# For targets that the host's compiler compiles and that include CUDA's headers: on a machine
# without the toolkit, Bazel leaves them out of //...
NEEDS_CUDA_HEADERS = [] if HAS_CUDA else ["@platforms//:incompatible"]

def gpu_library(name, cuda_deps, deps = [], **kwargs):
    """Makes two libraries of host code that uses a GPU: `name`, and `name`_emulated for tests.

    Args:
      name: name of the library, which needs --config=cuda.
      cuda_deps: dependencies that have an emulation: `name` gets X, `name`_emulated X_emulated.
      deps: other dependencies of both libraries.
      **kwargs: further arguments of both libraries.
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
    """Makes two tests of the same files: one for a GPU, with the tag "gpu", one on the emulation.

    On a machine without a GPU, the first test is skipped.

    Args:
      name: X_test, the test for a GPU; the test on the emulation is X_emulation_test.
      cuda_deps: dependencies that have an emulation, as in gpu_library.
      deps: other dependencies of both tests.
      tags: tags of both tests.
      **kwargs: further arguments of both tests.
    """
    cc_test(
        name = name,
        tags = tags + ["gpu"],
        target_compatible_with = CUDA_ONLY,
        deps = deps + cuda_deps + ["//common/bazel:cudart"],
        **kwargs
    )
    cc_test(
        name = name.replace("_test", "_emulation_test"),
        tags = tags,
        target_compatible_with = NEEDS_CUDA_HEADERS,
        deps = deps + [dep + "_emulated" for dep in cuda_deps] + ["//tests/gpu:cuda_emulation"],
        **kwargs
    )

def cuda_library(name, src, hdrs, deps = [], real_deps = [], emulated_deps = [], **kwargs):
    """Makes two libraries of one .cu file: `name`, and `name`_emulated for tests.

    nvcc compiles the first one, the host's compiler the second one.

    Args:
      name: name of the library, which needs --config=cuda.
      src: the .cu file.
      hdrs: headers of the .cu file.
      deps: dependencies of both libraries.
      real_deps: further dependencies of `name` only.
      emulated_deps: further dependencies of `name`_emulated only.
      **kwargs: further arguments of both libraries.
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
