"""Makes C++ libraries from .proto files, with the system's protoc and its plugin for gRPC."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def source_root():
    """Returns the folder in which a genrule finds this repository's files.

    In the workspace of Nereus this is the top folder; in a user's workspace it is external/NAME.
    """
    name = native.repository_name()
    return "." if name == "@" else "external/" + name[1:]

def proto_cc_library(name, src, deps = [], grpc = False, **kwargs):
    """Makes a cc_library of the messages of `src`, and also of its services if `grpc` is True.

    Args:
      name: name of the library.
      src: one .proto file of this package.
      deps: proto_cc_library targets whose .proto files `src` imports.
      grpc: True to generate the classes of the services, too.
      **kwargs: further arguments of cc_library.
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
