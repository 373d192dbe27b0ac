"""Rules for C++ whose files begin with a precompiled header.

The header includes only headers of the system. It saves one to two seconds of each file, of three
to six. Files include what they use all the same: tests/cpp_includes.py checks it, and clang
(tests/clang_tidy.py) reads no precompiled header.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(context):
    # GCC looks for the precompiled file beside the header, so the header is copied, too.
    header = context.actions.declare_file(context.attr.base + ".h")
    context.actions.expand_template(
        template = context.file.header,
        output = header,
        substitutions = {},
    )
    if not context.attr.compiles:
        return [DefaultInfo(files = depset([header]))]
    compiled = context.actions.declare_file(header.basename + ".gch")
    toolchain = find_cpp_toolchain(context)
    features = cc_common.configure_features(
        ctx = context,
        cc_toolchain = toolchain,
        requested_features = context.features,
        unsupported_features = context.disabled_features,
    )
    options = context.fragments.cpp
    contexts = [dep[CcInfo].compilation_context for dep in context.attr.deps]
    quotes = depset([context.bin_dir.path, "."], transitive = [each.quote_includes for each in contexts])
    arguments = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            source_file = header.path,
            output_file = compiled.path,
            quote_include_directories = quotes,
            user_compile_flags = options.copts + options.cxxopts + [
                # GCC warns of a main file that says #pragma once.
                "-w",
                "-x",
                "c++-header",
            ],
            use_pic = True,
        ),
    )
    context.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = arguments,
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = cc_common.empty_variables(),
        ),
        inputs = depset(
            [header],
            transitive = [toolchain.all_files] + [each.headers for each in contexts],
        ),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling " + context.file.header.short_path,
    )
    return [
        DefaultInfo(files = depset([header, compiled])),
    ]

_precompiled_header = rule(
    doc = "Compiles a header with the flags of the files that begin with it.",
    implementation = _precompiled_header_impl,
    attrs = {
        "base": attr.string(mandatory = True),
        "compiles": attr.bool(mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def precompiled_header(name, header, deps = []):
    """Makes the library `name` of name.h and, without a sanitizer, name.h.gch.

    Args:
      name: name of the library.
      header: the header to compile.
      deps: libraries of the headers that it includes.
    """
    _precompiled_header(
        name = name + "_gen",
        base = name,
        # GCC 12 crashes if it uses such a file together with a sanitizer.
        compiles = select({
            "//common/bazel:sanitizer": False,
            "//conditions:default": True,
        }),
        header = header,
        deps = deps,
    )
    native.cc_library(
        name = name,
        textual_hdrs = [name + "_gen"],
        deps = deps,
    )

def _begins_with_header(srcs = [], copts = [], deps = [], **kwargs):
    """Returns the arguments of a rule, with the precompiled header added if it has C++ files.

    A rule with an optimization level of its own gets no such header: GCC would take the level of
    the header without a warning, and loops would not become vector instructions.
    """
    arguments = dict(kwargs, srcs = srcs, copts = copts, deps = deps)
    has_files = type(srcs) == type([]) and len([src for src in srcs if src.endswith(".cc")]) > 0
    has_level = len([copt for copt in copts if copt.startswith("-O")]) > 0
    if has_files and not has_level:
        package = "tests/testing" if native.package_name().startswith("tests/") else "common/bazel"
        # GCC uses a precompiled header only if it comes before all others.
        arguments["copts"] = ["-include " + package + "/precompiled.h"] + copts
        arguments["deps"] = deps + [Label("//" + package + ":precompiled")]
    return arguments

def cc_binary(**kwargs):
    native.cc_binary(**_begins_with_header(**kwargs))

def cc_library(**kwargs):
    native.cc_library(**_begins_with_header(**kwargs))

def cc_test(**kwargs):
    native.cc_test(**_begins_with_header(**kwargs))
