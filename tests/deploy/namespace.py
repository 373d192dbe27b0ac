"""Processes with a view of this machine of their own, all of which end with a test."""

import subprocess
import time

from conftest import need


class Namespace:
    """A process in namespaces of its own of processes, mounts and the network, which has a
    loopback device only, and all processes below it. They end with this object, and also when
    the tests are killed. `script` is a program of bash; it stays, or executes what stays."""

    KINDS = ("--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup")

    def __init__(self, script, log):
        need("unshare", "nsenter", "setpriv", "ip")
        with open(log, "w", encoding="utf-8") as file:
            self.outside = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", "unshare", *self.KINDS, "--fork",
                 "--kill-child=KILL", "--mount-proc", "bash", "-euc",
                 f"ip link set lo up\n{script}"],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        self.inside = None  # Its first process.

    def __enter__(self):
        children = f"/proc/{self.outside.pid}/task/{self.outside.pid}/children"
        while not self.inside:
            assert self.outside.poll() is None, "unshare has failed"
            with open(children, encoding="utf-8") as file:
                self.inside = file.read().strip()
            time.sleep(0.01)
        return self

    def __exit__(self, *error):
        # All processes of a namespace die with its first one.
        self.outside.kill()
        self.outside.wait()

    def run(self, command, **options):
        """As subprocess.run, in the namespaces."""
        return subprocess.run(["nsenter", f"--target={self.inside}", *self.KINDS, *command],
                              **options)

    def output(self, *command):
        done = self.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout + done.stderr)
        return done.stdout
