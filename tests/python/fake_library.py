"""Library without a job, for tests of what the package does around its calls."""


class FakeLibrary:
    """Library that does nothing. A test sets what single functions do."""

    def __init__(self):
        self.closed = []  # Clients that were closed.
        self.functions = {"nereus_client_connect": self.connect,
                          "nereus_client_close": self.close,
                          "nereus_last_error": lambda: b"why"}

    def __getattr__(self, name):
        return self.functions.get(name, lambda *arguments: 0)

    def connect(self, options, layers, count, stream, client):
        client._obj.value = 7
        return 0

    def close(self, client):
        self.closed.append(getattr(client, "value", client))
