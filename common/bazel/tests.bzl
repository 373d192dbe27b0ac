"""Short forms for the tests of one folder, and the test suites of that folder."""

load(":precompiled.bzl", "cc_test")

# Tags of tests that are not unit tests. A test without any of these tags is a unit test.
_TAGS = [
    "gpu",
    "integration",
    "simulation",
]

def nereus_tests(size, tests, tags = []):
    """Makes a cc_test for each entry of `tests`.

    Args:
      size: size of each test.
      tests: {name: dependencies}. The test has one file, name.cc. GoogleTest is added to the
        dependencies.
      tags: tags of each test.
    """
    for name, deps in tests.items():
        cc_test(
            name = name,
            size = size,
            srcs = [name + ".cc"],
            tags = tags,
            deps = deps + ["//common/bazel:gtest"],
        )

def test_suites():
    """Makes the suite "unit", and a suite for each of _TAGS, from the tests of the calling package.

    Each BUILD file of tests calls this. The top BUILD file joins the suites of all packages.
    """
    native.test_suite(
        name = "unit",
        tags = ["-" + tag for tag in _TAGS],
    )
    for tag in _TAGS:
        native.test_suite(
            name = tag,
            tags = [tag],
        )
