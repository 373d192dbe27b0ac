"""Libraries within a program, for machines that do not have them (--config=static)."""

def statically(linkopts):
    """These flags, with archives for libraries, which may need each other."""
    return (["-Wl,-Bstatic", "-Wl,--start-group"] + linkopts +
            ["-Wl,--end-group", "-Wl,-Bdynamic"])

def link(shared, static = None):
    """Flags for a library: `shared`, and for --config=static others, or the same."""
    return select({
        "//common/bazel:statically": statically(static or shared),
        "//conditions:default": shared,
    })

# What archives of gRPC 1.51 and Abseil 20220623 need, which name nothing themselves.
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
