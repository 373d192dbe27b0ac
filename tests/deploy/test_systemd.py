"""Checks the units of systemd, and runs them: a systemd that is the first process of namespaces
of its own trains MNIST on one host, while processes are killed and stopped."""

import glob
import os
import re
import subprocess

import pytest
from conftest import ROOT, need, need_root
from jobs import (PROGRAMS, has_backups, has_lost_a_server, has_lost_a_worker, live, results,
                  status, until)
from namespace import Namespace

UNITS = os.path.join(ROOT, "deploy", "systemd")
SHARED = "nereus-.service.d"
# From 0 to 10, the exposure of a service without protection. The worker may use GPUs.
EXPOSURE_MAX = {"nereus-coordinator.service": 1.5, "nereus-server@.service": 1.5,
                "nereus-worker@.service": 1.8}
ACCURACY_MIN = 0.9  # After one epoch.
COORDINATOR = "nereus-coordinator"
SERVERS = ["nereus-server@0", "nereus-server@1"]
WORKERS = ["nereus-worker@0", "nereus-worker@1"]

# The systemd of the test sees copies of /etc and of the programs, and none of the machine's own
# units: these targets take their place.
TARGETS = ["sysinit", "basic", "shutdown", "network-online", "multi-user"]

# A systemd mounts control groups in /sys/fs/cgroup, and then makes this folder read-only. If the
# folder is a tmpfs, it becomes read-only for the whole machine. So the systemd of the test gets a
# tmpfs of its own with the same mounts.
START = """
if [[ $(stat --file-system --format=%T /sys/fs/cgroup) == tmpfs ]]; then
  mkdir {folder}/groups
  mount -t tmpfs tmpfs {folder}/groups
  for path in /sys/fs/cgroup/*; do
    if mountpoint --quiet $path; then
      mkdir {folder}/groups/${{path##*/}}
      mount --bind $path {folder}/groups/${{path##*/}}
    fi
  done
  mount --rbind {folder}/groups /sys/fs/cgroup
fi
for name in run var/lib usr/local/bin; do mount -t tmpfs tmpfs /$name; done
install {programs} /usr/local/bin
cp --archive /etc {folder}/etc
mount --bind {folder}/etc /etc
mkdir -p /etc/nereus /var/lib/nereus
cp {units}/job.env {folder}/host.env /etc/nereus
cp --recursive {mnist} /var/lib/nereus/mnist
echo nereus:x:64007:64007::/:/usr/sbin/nologin >>/etc/passwd
echo nereus:x:64007: >>/etc/group
ip address add 10.0.0.1/24 dev lo
hostname node1 && hostname >/etc/hostname && echo 10.0.0.1 node1 >>/etc/hosts
export SYSTEMD_UNIT_PATH={folder}/units container=other
exec {systemd} --system --unit=multi-user.target --log-target=console
"""


@pytest.mark.parametrize("name", EXPOSURE_MAX)
def test_units_are_valid_and_hardened(name, tmp_path):
    need("systemd-analyze")
    with open(os.path.join(UNITS, name), encoding="utf-8") as file:
        text = file.read()
    for program, path in PROGRAMS.items():
        text = text.replace(f"/usr/local/bin/{program}", path)
    os.symlink(os.path.join(UNITS, SHARED), tmp_path / SHARED)
    unit = tmp_path / name.replace("@", "@0")
    unit.write_text(text, encoding="utf-8")

    def analyze(*arguments):
        done = subprocess.run(["systemd-analyze", *arguments, unit], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert analyze("verify") == ""
    report = analyze("security", "--offline=yes", "--no-pager")
    exposure = float(re.search(r"exposure level for \S+: ([\d.]+)", report)[1])
    assert exposure <= EXPOSURE_MAX[name], report


class Systemd(Namespace):
    """Runs the units of deploy/systemd as host node1. Its files are in `folder`."""

    def __init__(self, folder, mnist):
        systemd = "/lib/systemd/systemd"
        if not os.path.exists(systemd):
            pytest.skip("there is no systemd: deploy/install_packages.sh --test installs it")
        if os.path.isdir("/run/systemd/system"):
            pytest.skip("this machine's own systemd has its control groups: use a container")
        self.folder = folder
        self.groups = control_groups()
        self.top = top_of_groups()
        units = folder / "units"
        (units / "service.d").mkdir(parents=True)
        (units / "service.d" / "log.conf").write_text(
            f"[Service]\nStandardOutput=append:{folder}/%N.log\n", encoding="utf-8")
        refused = units / "nereus-worker@2.service.d"
        refused.mkdir()
        (refused / "batch.conf").write_text("[Service]\nEnvironment=NEREUS_BATCH=64\n",
                                            encoding="utf-8")
        for name in TARGETS:
            (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n",
                                                  encoding="utf-8")
        for name in (*EXPOSURE_MAX, SHARED):
            os.symlink(os.path.join(UNITS, name), units / name)
        (folder / "host.env").write_text(
            "NEREUS_DATA=/var/lib/nereus/mnist\nNEREUS_EPOCHS=1\nNEREUS_DELAY=0.1\n"
            "NEREUS_LOG_LEVEL=debug\n",
            encoding="utf-8")
        super().__init__(START.format(folder=folder, units=UNITS, mnist=mnist, systemd=systemd,
                                      programs=" ".join(PROGRAMS.values())),
                         folder / "systemd.log")

    def __enter__(self):
        super().__enter__()
        try:
            until("systemd runs", lambda: self.run(
                ["systemctl", "is-active", "multi-user.target"], capture_output=True, text=True,
                check=False).stdout, lambda text: text == "active\n", timeout=20)
        except AssertionError:
            self.__exit__()
            pytest.skip("systemd does not run in a namespace here: "
                        + (self.folder / "systemd.log").read_text(errors="replace")[-300:])
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        for path in sorted(self.folder.glob("*.log")):
            print(f"== {path.name}\n{path.read_text(errors='replace')}")
        until("all control groups are empty", self.remove_groups, lambda removed: removed)

    def remove_groups(self):
        """Removes the control groups that this systemd has made. Returns whether none is left, and
        the folder of all groups is as it was."""
        try:
            for group in sorted(control_groups() - self.groups, reverse=True):
                if "/init.scope" in group or "/system.slice" in group:
                    os.rmdir(group)
        except OSError:
            return False  # A process of it has not ended yet.
        return self.top == top_of_groups()

    def status(self):
        return status("node1:7000", self.run)

    def until(self, what, is_true):
        return until(what, self.status, is_true)

    def show(self, unit):
        """The unit's state, its last exit code, and the number of its restarts."""
        names = ("ActiveState", "Result", "ExecMainStatus", "NRestarts")
        text = self.output("systemctl", "show", unit, *(f"--property={name}" for name in names))
        values = dict(line.split("=", 1) for line in text.splitlines())
        return tuple(values[name] for name in names)

    def kill(self, unit):
        self.output("systemctl", "kill", "--signal=KILL", unit)

    def log(self, unit):
        return (self.folder / f"{unit}.log").read_text(errors="replace")


def top_of_groups():
    """What a systemd changes in the folder: its names, and whether it is writable."""
    return sorted(os.listdir("/sys/fs/cgroup")), os.access("/sys/fs/cgroup", os.W_OK)


def control_groups():
    return set(glob.glob("/sys/fs/cgroup/**/", recursive=True))


@pytest.fixture
def host(mnist, tmp_path):
    need("systemctl")
    need_root("namespaces")
    with Systemd(tmp_path, mnist) as made:
        yield made


def test_units_start_again_what_should_start_again(host):
    names = {"node1-0", "node1-1"}
    host.output("systemctl", "start", COORDINATOR, *SERVERS, *WORKERS)
    host.until("the job trains", lambda s: live(s) == names and has_backups(s) and s["step"] >= 5)

    host.kill(WORKERS[1])
    host.until("an epoch without a worker", lambda s: has_lost_a_worker(s, {"node1-0"}))
    host.until("the worker is back", lambda s: live(s) == names)
    host.kill(SERVERS[1])
    host.until("an epoch without a server", has_lost_a_server)
    before = host.until("all backups are whole", has_backups)
    host.kill(COORDINATOR)
    host.until("the coordinator is back", lambda s: s["step"] > before["step"])
    for unit in (WORKERS[1], SERVERS[1], COORDINATOR):
        assert host.show(unit)[3] == "1"

    # A worker that the job refuses is not started again.
    host.output("systemctl", "start", "nereus-worker@2")
    until("worker 2 is refused", lambda: host.show("nereus-worker@2"),
          lambda unit: unit == ("failed", "exit-code", "4", "0"))

    # A worker is stopped, which is no failure. With the other one the job stops, and begins
    # anew from its last checkpoint when workers are there.
    stopped = host.until("an answer", lambda s: True)
    for unit in WORKERS:
        host.output("systemctl", "stop", unit)
        assert host.show(unit)[:2] == ("inactive", "success")
    for unit in (COORDINATOR, *SERVERS):
        until(f"{unit} starts again", lambda unit=unit: host.show(unit),
              lambda state, unit=unit: state[0] == "active"
              and int(state[3]) == 1 + (unit != SERVERS[0]))
    host.output("systemctl", "start", *WORKERS)
    status_now = host.until("the job trains again", lambda s: live(s) == names and s["step"] >= 0)
    assert status_now["step"] >= stopped["step"] - 1

    for unit in (*WORKERS, *SERVERS, COORDINATOR):
        until(f"{unit} is done", lambda unit=unit: host.show(unit)[:2],
              lambda state: state == ("inactive", "success"))
    measured = [results(host.log(unit))[-1] for unit in WORKERS]
    assert len(set(measured)) == 1 and float(measured[0][0]) >= ACCURACY_MIN, measured
    assert "is finished after step" in host.log(COORDINATOR)
    assert "by shared memory" in host.log(WORKERS[0])
