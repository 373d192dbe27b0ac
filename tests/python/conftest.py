"""Paths that the tests need, the package, and a client without a job."""

import array
import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "worker", "python"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def path_of(variable):
    path = os.environ.get(variable, "")
    if not os.path.exists(path):
        pytest.fail(f"{variable} is '{path}', where no file is: tests/python/run.sh sets it")
    return path


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def library_path():
    return path_of("NEREUS_LIBRARY")


@pytest.fixture
def nereusctl(library_path):
    return path_of("NEREUSCTL")


@pytest.fixture
def library(monkeypatch):
    from fake_library import FakeLibrary
    from nereus import _log, _native
    fake = FakeLibrary()
    monkeypatch.setattr(_native, "_loaded", fake)
    monkeypatch.setattr(_native, "library", lambda cuda=False: fake)
    monkeypatch.setattr(_native, "note_client", lambda: None)
    monkeypatch.setattr(_log, "start", lambda: None)
    return fake


@pytest.fixture
def client(library):
    import nereus
    made = nereus.Client([nereus.Layer("line", "vector", array.array("f", [0, 0]))])
    yield made
    made.close()
