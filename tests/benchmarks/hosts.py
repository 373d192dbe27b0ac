"""Hosts for benchmarks: network namespaces on a bridge, with limited links.

Needs root and iproute2. The hosts are removed at the end, also after Ctrl-C. A
run that was killed leaves names that begin with "nrs".
"""

import os
import subprocess


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class OneMachine:
    """`count` hosts that are this machine, without limits."""

    rate = "loopback"

    def __init__(self, count):
        self.count = count

    def address(self, _):
        return "127.0.0.1"

    def command(self, _, arguments):
        return arguments

    def link_bytes(self):
        return [0] * self.count

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Hosts:
    """`count` hosts at address(0), address(1), ...

    Each host sends and receives `rate` bits per second.
    """

    def __init__(self, count, rate):
        self.count = count
        self.rate = rate
        self.tag = f"nrs{os.getpid() % 10000}"
        self.bridge = f"{self.tag}br"

    def address(self, host):
        return f"10.77.0.{host + 1}"

    def name(self, host):
        return f"{self.tag}h{host}"

    def command(self, host, arguments):
        """Returns the command that runs `arguments` on `host`."""
        return ["ip", "netns", "exec", self.name(host)] + arguments

    def link_bytes(self):
        """Returns the bytes sent and received by each host's link so far."""
        totals = []
        for host in range(self.count):
            total = 0
            for way in ("rx_bytes", "tx_bytes"):
                path = f"/sys/class/net/eth0/statistics/{way}"
                total += int(subprocess.run(
                    self.command(host, ["cat", path]), capture_output=True,
                    text=True, check=True).stdout)
            totals.append(total)
        return totals

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_):
        self._remove()

    def _make(self):
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "link", "set", self.bridge, "up")
        for host in range(self.count):
            name, inner, outer = self.name(host), "eth0", f"{self.tag}v{host}"
            run("ip", "netns", "add", name)
            run("ip", "link", "add", outer, "type", "veth", "peer", "name",
                inner, "netns", name)
            run("ip", "link", "set", outer, "master", self.bridge)
            run("ip", "link", "set", outer, "up")
            inside = ["ip", "-n", name]
            run(*inside, "link", "set", "lo", "up")
            run(*inside, "address", "add", f"{self.address(host)}/24", "dev",
                inner)
            run(*inside, "link", "set", inner, "up")
            # Limits the host's link in both directions. A burst must hold the
            # largest segment that the kernel hands to a device at a time.
            limit = ["root", "tbf", "rate", str(self.rate), "burst", "256kb",
                     "latency", "50ms"]
            run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", inner,
                *limit)
            run("tc", "qdisc", "add", "dev", outer, *limit)

    def _remove(self):
        for host in range(self.count):
            subprocess.run(["ip", "netns", "del", self.name(host)],
                           capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", f"{self.tag}v{host}"],
                           capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True,
                       check=False)
