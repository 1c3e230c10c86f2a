# SPDX-License-Identifier: Apache-2.0
"""hvdrun -H by the real ssh, to a real sshd on a host that is a network namespace of this machine.

The programs need no MPI: that the launcher starts and ends them is all there is to see here.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import two_hosts
from launching import wait_until_gone
from mpi import PACKAGE, Job, is_open_mpi

PORT = 2222
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
# Nobody else's files: what this host mounts there goes with it.
PREPARE = """
mount -t tmpfs none /etc/ssh && cp "$0" /etc/ssh/ssh_known_hosts &&
mount -t tmpfs none /run && mkdir /run/sshd && exec "$@"
"""
SETTINGS = """
Port {port}
ListenAddress {address}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub {directory}/locked_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
"""
TELL = "import json, os, sys; print(json.dumps([os.uname()[1], os.environ[sys.argv[1]]]))"
WAIT = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(1000)"
VALUE = "a  'b' \"c\" $HOME `d` e=f;\n\\n * ü\n"


@dataclass
class Hosts:
    """The launcher's host and the one that it reaches by ssh."""

    two: two_hosts.TwoHosts
    directory: Path
    sshd: subprocess.Popen[bytes]

    def start(self, *options: str, key: str = "user_key", known: str = "known_hosts") -> Job:
        """hvdrun on the first host, with one rank on each."""
        where = ",".join(f"{address}:1" for address in self.two.addresses)
        prepare = ["sh", "-c", PREPARE, str(self.directory / known)]
        hvdrun = [sys.executable, "-m", "hvd_tf.launch", "-np", "2", "-H", where]
        ssh = ["-p", str(PORT), "-i", str(self.directory / key)]
        env = {"SPECIAL": VALUE, "PYTHONPATH": str(PACKAGE.parent), "SSH_ASKPASS_REQUIRE": "never"}
        launcher = [*self.two.first(), *prepare, *hvdrun, *ssh]
        return Job(list(options), 2, env, launcher=launcher)

    def sessions(self) -> list[int]:
        """Processes of sshd for connections that there are."""
        pid = self.sshd.pid
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    missing = [name for name in ("ssh", "ssh-keygen", "mount") if shutil.which(name) is None]
    if SSHD is None or missing:
        pytest.skip(f"needs {', '.join(missing or ['sshd'])}")
    if reason := two_hosts.why_not():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("ssh")
    for name, phrase in (("host_key", ""), ("user_key", ""), ("locked_key", "a phrase")):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", str(directory / name)]
        subprocess.run(key, check=True)
    with two_hosts.TwoHosts() as two:
        _, address = two.addresses
        settings, log = directory / "sshd_config", directory / "sshd.log"
        settings.write_text(SETTINGS.format(port=PORT, address=address, directory=directory))
        host_key = " ".join((directory / "host_key.pub").read_text().split()[:2])
        (directory / "known_hosts").write_text(f"[{address}]:{PORT} {host_key}\n")
        (directory / "nobody").touch()
        prepare = ["sh", "-c", PREPARE, str(directory / "nobody")]
        sshd = [SSHD, "-D", "-f", str(settings), "-E", str(log)]
        with subprocess.Popen([*two.on(address), *prepare, *sshd]) as process:
            try:
                wait_until(lambda: log.exists() and "Server listening" in log.read_text())
                yield Hosts(two, directory, process)
            finally:
                process.terminate()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_variables_and_arguments_arrive(hosts: Hosts) -> None:
    with hosts.start("-x", "SPECIAL", sys.executable, "-c", TELL, "SPECIAL") as job:
        result = job.wait(60)
    assert result.returncode == 0 and result.leftovers == [], result.text
    # Not mpirun's own, such as its harmless "Warning: setpgid failed" where ssh starts fast.
    lines = result.launcher_output.splitlines()
    told = sorted(line for line in lines if line.startswith(("[0] ", "[1] ")))
    assert [line[:4] for line in told] == ["[0] ", "[1] "]
    assert [json.loads(line[4:]) for line in told] == [[one, VALUE] for one in hosts.two.addresses]


@pytest.mark.parametrize("killed", ["ssh", "sshd", "launcher"])
def test_a_connection_that_is_lost(hosts: Hosts, killed: str) -> None:
    if killed != "launcher" and not is_open_mpi():
        pytest.skip("MPICH has a connection of its own beside ssh, and the job goes on")
    with hosts.start(sys.executable, "-c", WAIT) as job:
        pids = []
        for rank in range(2):
            job.wait_for(f"[{rank}] pid ")
            head = f"[{rank}] pid "
            lines = job.launcher_output().splitlines()
            pids += [int(line[len(head) :]) for line in lines if line.startswith(head)]
        assert len(pids) == 2
        victims = {"sshd": hosts.sessions(), "launcher": [job.process.pid]}.get(killed)
        for pid in victims or [p for p in job.processes() if is_ssh(p)]:
            os.kill(pid, signal.SIGKILL)
        wait_until_gone(pids)
        result = job.wait(60)
    assert not result.timed_out and result.leftovers == [], result.text
    if killed == "launcher":
        assert result.returncode == -signal.SIGKILL
        return
    # What mpirun returns is the status of the ssh, which may be 0.
    assert result.returncode > 0, result.text
    last = result.launcher_output.splitlines()[-1]
    assert last.startswith("hvdrun: ") and f" {hosts.two.addresses[1]} " in last, result.text
    wait_until(lambda: not hosts.sessions())


@pytest.mark.parametrize(
    ("key", "known", "words"),
    [
        ("host_key", "known_hosts", "Permission denied (publickey)"),
        ("locked_key", "known_hosts", "Permission denied (publickey)"),
        ("user_key", "nobody", "Host key verification failed."),
    ],
)
def test_a_host_that_refuses(hosts: Hosts, key: str, known: str, words: str) -> None:
    with hosts.start("true", key=key, known=known) as job:
        result = job.wait(60)
    assert result.returncode == 255 and not result.timed_out, result.text
    assert result.leftovers == [] and words in result.launcher_output
    ssh = ["ssh", "-p", str(PORT), "-i", str(hosts.directory / key), hosts.two.addresses[1], "true"]
    assert f"see that '{shlex.join(ssh)}' works" in result.launcher_output.splitlines()[-1]


def is_ssh(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "ssh"
    except OSError:
        return False
