"""C++ from .proto files, with the system's protoc and gRPC plugin."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def source_root():
    """Where this repository's files are for a genrule: not at the top in a workspace that uses it."""
    name = native.repository_name()
    return "." if name == "@" else "external/" + name[1:]

def proto_cc_library(name, src, deps = [], grpc = False, **kwargs):
    """A cc_library of `src`'s messages, and of its services if `grpc`.

    Args:
      name: the library.
      src: one .proto file of this package.
      deps: proto_cc_library targets whose .proto files `src` imports.
      grpc: also generate the service stubs.
      **kwargs: passed to cc_library.
    """
    stem = src[:-len(".proto")]
    outs = [stem + ".pb.h", stem + ".pb.cc"]
    root = source_root()
    target = "$(GENDIR)/" + root
    command = "protoc -I%s --cpp_out=%s $(location %s)" % (root, target, src)
    if grpc:
        outs += [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
        command += " --grpc_out=" + target + " --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin"
    native.filegroup(
        name = name + "_proto",
        srcs = [src] + [dep + "_proto" for dep in deps],
    )
    native.genrule(
        name = name + "_gen",
        srcs = [src] + [dep + "_proto" for dep in deps],
        outs = outs,
        cmd = command,
    )
    cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        copts = ["-Wno-unused-parameter"],
        deps = deps + (["//common/bazel:grpc"] if grpc else ["//common/bazel:protobuf"]),
        **kwargs
    )
