"""Tests in short, and the suites of one folder of tests."""

# Without a tag of these, a test is a unit test.
_TAGS = [
    "gpu",
    "integration",
    "simulation",
]

def nereus_tests(size, tests, tags = []):
    """A cc_test of one file for each entry.

    Args:
      size: of each.
      tests: {name: its deps, without GoogleTest}; the file is name.cc.
      tags: of each.
    """
    for name, deps in tests.items():
        native.cc_test(
            name = name,
            size = size,
            srcs = [name + ".cc"],
            tags = tags,
            deps = deps + ["//common/bazel:gtest"],
        )

def test_suites():
    """Call it in each BUILD file of tests; the top BUILD file joins them."""
    native.test_suite(
        name = "unit",
        tags = ["-" + tag for tag in _TAGS],
    )
    for tag in _TAGS:
        native.test_suite(
            name = tag,
            tags = [tag],
        )
