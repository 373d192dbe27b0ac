"""Programs that a wheel brings along, as commands of Python."""

import os
import shutil
import sys

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def find(name):
    """Returns the path of a program: that of the package, or one on the PATH; None if there
    is none."""
    path = os.path.join(_FOLDER, name)
    return path if os.access(path, os.X_OK) else shutil.which(name)


def _run(name):
    path = os.path.join(_FOLDER, name)
    os.execv(path, [path, *sys.argv[1:]])


def nereusctl():
    _run("nereusctl")


def server():
    _run("nereus-server")
