"""A cluster of Slurm on this machine: its daemons for two nodes, in namespaces of their own."""

import json
import os
import re
import signal
import socket
import stat
import subprocess

import jobs
from conftest import ROOT, need
from namespace import Namespace

SCRIPT = os.path.join(ROOT, "deploy", "slurm", "train.sbatch")
SHARE = os.path.join(ROOT, "deploy", "slurm", "share.sh")

CONFIGURATION = """
ClusterName=nereus
SlurmctldHost={machine}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
GresTypes=gpu,shard
NodeName=node1 NodeHostname={machine} NodeAddr=10.0.0.1 Port=7001 CPUs=8 Gres=gpu:1,shard:2
NodeName=node2 NodeHostname={machine} NodeAddr=10.0.0.2 Port=7002 CPUs=8 Gres=gpu:1,shard:2
PartitionName=all Nodes=ALL Default=YES State=UP
PartitionName=shared Nodes=ALL OverSubscribe=YES:2 State=UP
"""

# A GPU for each node. Nothing opens its device file, so any device will do.
DEVICES = """
Name=gpu File={folder}/gpu0
Name=shard Count=2 File={folder}/gpu0
"""

DAEMONS = """
ip address add 10.0.0.1/24 dev lo
ip address add 10.0.0.2/24 dev lo
(cat /etc/hosts; echo 10.0.0.1 node1; echo 10.0.0.2 node2) >{folder}/hosts
mount --bind {folder}/hosts /etc/hosts
export SLURM_CONF={folder}/slurm.conf
(umask 077; head --bytes=128 /dev/urandom >{folder}/munge.key)
munged --force --key-file={folder}/munge.key --socket={folder}/munge.socket \\
  --pid-file={folder}/munge.pid --log-file={folder}/munge.log --seed-file={folder}/munge.seed
slurmctld
{start_node} node1
{start_node} node2
exec sleep infinity
"""

# Starts the daemon of node $1 in a namespace of processes, which all die at once with the first.
# Each node has its own files in the folder `node`.
START_NODE = """
unshare --mount-proc --pid --fork --kill-child=KILL \
  bash -c "mount -t tmpfs none {folder}/node; slurmd -N $1; exec sleep infinity" \
  </dev/null >/dev/null 2>&1 &
echo $! >{folder}/$1.pid
"""


class Slurm(Namespace):
    """Runs jobs of train.sbatch. Their files are in `folder`. Methods look at the last one of
    them, whose number is `job`."""

    def __init__(self, folder):
        need("munged", "slurmctld", "slurmd", "sbatch")
        self.folder = folder
        for name in ("state", "node"):
            os.mkdir(folder / name)
        os.mknod(folder / "gpu0", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # As /dev/null.
        with open(folder / "gres.conf", "w", encoding="utf-8") as file:
            file.write(DEVICES.format(folder=folder))
        with open(folder / "slurm.conf", "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(
                machine=socket.gethostname().split(".")[0], folder=folder))
        with open(folder / "start_node", "w", encoding="utf-8") as file:
            file.write(START_NODE.format(folder=folder))
        super().__init__(DAEMONS.format(folder=folder, start_node=f"bash {folder}/start_node"),
                         folder / "daemons.log")
        self.job = None

    def __enter__(self):
        super().__enter__()
        try:
            jobs.until("both nodes are idle", lambda: self.slurm("sinfo", "-h", "-o", "%T %D"),
                       lambda text: text.split() == ["idle", "2"])
        except AssertionError:
            self.show()
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        self.show()
        super().__exit__(*error)

    def show(self):
        """Prints what all processes have written, which pytest shows if a test fails."""
        for path in sorted(self.folder.glob("*.log")):
            print(f"== {path.name}\n{path.read_text(errors='replace')}")

    def slurm(self, *command, **variables):
        """Runs a program of Slurm. Returns its output."""
        path = os.pathsep.join(
            [*(os.path.dirname(program) for program in jobs.PROGRAMS.values()),
             os.environ["PATH"]])
        return self.run(command, stdout=subprocess.PIPE, text=True, check=False,
                        env={**os.environ, "PATH": path, "TMPDIR": str(self.folder),
                             "SLURM_CONF": f"{self.folder}/slurm.conf", **variables}).stdout

    def submit(self, *program, **variables):
        """Submits a job of two nodes that runs `program` as worker."""
        output = self.slurm("sbatch", "--nodes=2", f"--output={self.folder}/job-%j.log", SCRIPT,
                            *program, **variables)
        self.job = output.split()[-1]

    def share(self, options, *programs, **variables):
        """Submits jobs of these programs that take turns. Returns their numbers."""
        output = self.slurm(SHARE, *options, f"--output={self.folder}/job-%j.log",
                            *(word for program in programs for word in ("--", *program)),
                            NEREUS_SHARE=f"{self.folder}/node/turns", **variables)
        return re.findall(r"^job (\d+):", output, re.MULTILINE)

    def devices(self, node):
        """The workers that share devices on a node, as nereusctl tells: {device: [worker]}."""
        text = self.slurm("srun", f"--jobid={self.job}", "--overlap", "--nodes=1", "--ntasks=1",
                          f"--nodelist={node}", "--gres=none", "--quiet", "nereusctl", "share",
                          "--json", f"{self.folder}/node/turns")
        return {os.path.basename(device["folder"]): device["clients"]
                for device in json.loads(text or "[]") if device["clients"]}

    def log(self):
        return (self.folder / f"job-{self.job}.log").read_text(errors="replace")

    def state(self):
        """Slurm's view of the job: {"JobState": "RUNNING", "ExitCode": "0:0", ...}."""
        return dict(re.findall(r"(\w+)=(\S+)",
                               self.slurm("scontrol", "--oneliner", "show", "job", self.job)))

    def until_state(self, *states, timeout=60):
        return jobs.until(f"the job is {states}", self.state,
                          lambda state: state.get("JobState") in states, timeout)

    def status(self):
        return jobs.status(f"node1:{10000 + int(self.job)}", self.run)

    def until(self, what, is_true, timeout=60):
        return jobs.until(what, self.status, is_true, timeout)

    def processes(self, node):
        """{process: (command line, variables)} of the job's tasks on a node, and of their
        shells. With two jobs: of both."""
        mark = {"SLURM_CONF": f"{self.folder}/slurm.conf", "SLURMD_NODENAME": node}
        found = {}
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/environ", encoding="utf-8", errors="replace") as file:
                    variables = dict(entry.split("=", 1)
                                     for entry in file.read().split("\0") if "=" in entry)
                with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as file:
                    command = file.read().replace("\0", " ")
            except OSError:
                continue  # It has ended.
            if mark.items() <= variables.items():
                found[int(process)] = command, variables
        return found

    def kill(self, node, program):
        """Kills the task whose command line begins so."""
        [process] = [process for process, (command, _) in self.processes(node).items()
                     if command.startswith(program)]
        os.kill(process, signal.SIGKILL)

    def lose(self, node):
        """Lets a node vanish, with its daemon and all tasks, and tells Slurm so."""
        with open(self.folder / f"{node}.pid", encoding="utf-8") as file:
            self.run(["kill", "-KILL", file.read().strip()], check=True)
        self.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def bring_back(self, node):
        self.slurm("bash", f"{self.folder}/start_node", node)
        jobs.until(f"{node} is idle", lambda: self.slurm("sinfo", "-h", "-n", node, "-o", "%T"),
                   lambda text: text.strip() == "idle")
