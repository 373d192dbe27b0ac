"""Paths that the tests need, and the package."""

import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "worker", "python"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def path_of(variable):
    path = os.environ.get(variable, "")
    if not os.path.exists(path):
        pytest.skip(f"{variable} is '{path}', where no file is: tests/python/run.sh sets it")
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
