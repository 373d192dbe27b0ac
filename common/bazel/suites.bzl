"""The suites of one folder of tests, by the tags of its tests."""

# Without a tag of these, a test is a unit test.
_TAGS = [
    "gpu",
    "integration",
    "simulation",
]

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
