"""Flags that make libraries parts of a program, for machines without them (--config=static)."""

def statically(linkopts):
    """Returns `linkopts` between flags with which the linker takes archives, in any order."""
    return (["-Wl,-Bstatic", "-Wl,--start-group"] + linkopts +
            ["-Wl,--end-group", "-Wl,-Bdynamic"])

def link(shared, static = None):
    """Returns the linker's flags for a library.

    Args:
      shared: the flags without --config=static.
      static: the flags for --config=static, where they differ from `shared`.
    """
    return select({
        "//common/bazel:statically": statically(static or shared),
        "//conditions:default": shared,
    })

# Libraries for --config=static. Unlike a shared library, an archive does not name the libraries
# that it needs. So these lists name everything that Abseil 20220623 and gRPC 1.51 need.
ABSL = ["-labsl_" + name for name in [
    "bad_optional_access",
    "bad_variant_access",
    "base",
    "city",
    "civil_time",
    "cord",
    "cord_internal",
    "cordz_functions",
    "cordz_handle",
    "cordz_info",
    "debugging_internal",
    "demangle_internal",
    "exponential_biased",
    "graphcycles_internal",
    "hash",
    "hashtablez_sampler",
    "int128",
    "log_severity",
    "low_level_hash",
    "malloc_internal",
    "random_distributions",
    "random_internal_platform",
    "random_internal_pool_urbg",
    "random_internal_randen",
    "random_internal_randen_hwaes",
    "random_internal_randen_hwaes_impl",
    "random_internal_randen_slow",
    "random_internal_seed_material",
    "random_seed_gen_exception",
    "random_seed_sequences",
    "raw_hash_set",
    "raw_logging_internal",
    "spinlock_wait",
    "stacktrace",
    "status",
    "statusor",
    "str_format_internal",
    "strerror",
    "strings",
    "strings_internal",
    "symbolize",
    "synchronization",
    "throw_delegate",
    "time",
    "time_zone",
]]
GRPC = [
    "-lgrpc++",
    "-lgrpc",
    "-lgpr",
    "-laddress_sorting",
    "-lre2",
    "-lupb",
    "-lcares",
    "-lssl",
    "-lcrypto",
    "-lprotobuf",
    "-lz",
] + ABSL
