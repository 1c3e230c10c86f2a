# SPDX-License-Identifier: Apache-2.0
"""hvdrun -H: which hosts, what mpirun and ssh are told, and which variables travel."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

import pytest
from launching import INTEL_MPI, MPICH, facts, fake_mpirun, left_of, run

KEEP = "PRTE_MCA_prte_keep_fqdn_hostnames"
NOTE = "note(arguments=sys.argv, env=dict(os.environ))"
OURS = {"HVD_A": "1", "HOROVOD_B": "2", "TF_C": "3", "XLA_D": "4", "NCCL_E": "5", "OMP_F": "6"}
OURS.update({"CUDA_G": "7", "PYTHONPATH": "", "LD_LIBRARY_PATH": "/x"})
OURS.update({"I_MPI_FABRICS": "shm", "MPIR_CVAR_H": "8", "FI_PROVIDER": "tcp", "UCX_TLS": "all"})
OTHERS = {"HVDX": "1", "TFX": "2", "CLOUD_SECRET_KEY": "sesame", "MYPATH": "3", "LANG": "C"}
OTHERS["CUDA_VISIBLE_DEVICES"] = "0"  # this host's


def after(arguments: list[str], option: str) -> list[str]:
    """What follows the option, wherever it comes."""
    return [arguments[i + 1] for i, word in enumerate(arguments) if word == option]


def noted(directory: Path, arguments: list[str], env: dict[str, str | None]) -> list[str]:
    result = run(directory, arguments, env)
    assert (result.returncode, result.stderr) == (0, "")
    found: list[str] = facts(directory)["arguments"]
    return found


def test_hosts_and_variables_of_open_mpi(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, NOTE)
    extra = {"OMPI_MCA_btl_sm_backing_directory": None, "MINE": "sesame"}
    options = ["-np", "5", "-H", "node1:2,node-2.example.org:3,node3:4", "-x", "MINE"]
    arguments = noted(tmp_path, [*options, "true"], {**OURS, **OTHERS, **extra})
    assert after(arguments, "--host") == ["node1:2,node-2.example.org:3"]
    assert after(arguments, "--map-by") == ["slot:OVERSUBSCRIBE"]
    names = after(arguments, "-x")
    assert {*OURS, "MINE", "PATH", "HVD_RESTART"} <= set(names)
    assert not {*OTHERS, "HVD_JOB_DIR", "TMPDIR"} & set(names)
    assert "sesame" not in " ".join(arguments)
    env = facts(tmp_path)["env"]
    assert env["MINE"] == "sesame"  # mpirun takes the value from here
    # They name places on this host, and Open MPI would carry them to the others.
    assert not [name for name in env if name.endswith("_backing_directory")]
    assert "PRTE_MCA_prte_tmpdir_base" not in env
    assert env["PRTE_MCA_prte_local_tmpdir_base"] == env["HVD_JOB_DIR"]
    assert left_of(tmp_path) == []


@pytest.mark.parametrize(
    ("hosts", "settings"),
    [
        ("node1.r1:1,node1.r2:1", {KEEP: "1"}),
        ("node1.r1:1,localhost:1,node2.r1:1,node1:1", {KEEP: "1"}),
        (f"localhost:1,{socket.gethostname().partition('.')[0]}.elsewhere:1", {KEEP: "1"}),
        ("node1.r1:1,node2.r1:1", {}),
        ("10.213.7.1:1,10.213.7.2:1", {}),
    ],
)
def test_names_that_begin_alike_are_not_cut(
    tmp_path: Path, hosts: str, settings: dict[str, str]
) -> None:
    fake_mpirun(tmp_path, NOTE)
    noted(tmp_path, ["-np", str(hosts.count(":")), "-H", hosts, "true"], {})
    env = facts(tmp_path)["env"]
    assert {name: text for name, text in env.items() if name == KEEP} == settings


def test_ranks_of_this_host_get_its_private_directories(tmp_path: Path) -> None:
    body = """
note(env=dict(os.environ))
subprocess.run(command)
elsewhere = {k: v for k, v in os.environ.items() if k != "HVD_JOB_DIR"}
subprocess.run(command, env=elsewhere)
"""
    fake_mpirun(tmp_path, body)
    options = ["-np", "2", "-H", "localhost:1,node1:1"]
    show = 'echo "${OMPI_MCA_btl_sm_backing_directory-none}"'
    result = run(tmp_path, [*options, "sh", "-c", show])
    here, elsewhere = result.stdout.splitlines()
    assert Path(here).name.startswith(("mpi.hvdrun.", "hvdrun.")) and elsewhere == "none"


def test_hosts_and_variables_of_mpich(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, NOTE, MPICH)
    options = ["-np", "3", "-H", "localhost:1,node1:2", "-p", "2222", "-x", "MINE=sesame"]
    arguments = noted(tmp_path, [*options, "true"], {**OURS, **OTHERS})
    assert arguments[1:5] == ["-launcher", "ssh", "-hosts", f"{socket.gethostname()}:1,node1:2"]
    (names,) = after(arguments, "-genvlist")
    assert {*OURS, "MINE", "PATH"} <= set(names.split(","))
    assert not {*OTHERS, "HVD_JOB_DIR"} & set(names.split(","))
    assert "sesame" not in " ".join(arguments)
    assert facts(tmp_path)["env"]["HYDRA_LAUNCHER_EXTRA_ARGS"] == "-p 2222"


def test_hosts_and_variables_of_intel_mpi(tmp_path: Path) -> None:
    hosts = "hosts=open(sys.argv[sys.argv.index('-machinefile') + 1]).read()"
    fake_mpirun(tmp_path, f"note(arguments=sys.argv, env=dict(os.environ), {hosts})", INTEL_MPI)
    options = ["-np", "3", "-H", "localhost:1,node1:2", "-p", "2222", "-x", "MINE=sesame"]
    arguments = noted(tmp_path, [*options, "true"], {**OURS, **OTHERS})
    assert arguments[1:4] == ["-launcher", "ssh", "-machinefile"]
    assert facts(tmp_path)["hosts"] == f"{socket.gethostname()}:1\nnode1:2\n"
    (names,) = after(arguments, "-genvlist")
    assert {*OURS, "MINE", "PATH", "I_MPI_PIN"} <= set(names.split(","))
    assert not {*OTHERS, "HVD_JOB_DIR"} & set(names.split(","))
    assert facts(tmp_path)["env"]["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] == "-p 2222"


@pytest.mark.parametrize(
    ("version", "option"),
    [
        ("mpirun (Open MPI) 5.0.11", ["--prtemca", "plm_ssh_args"]),
        ("mpirun (Open MPI) 4.1.6", ["--mca", "plm_rsh_args"]),
    ],
)
def test_port_and_key_are_handed_to_ssh(tmp_path: Path, version: str, option: list[str]) -> None:
    fake_mpirun(tmp_path, NOTE, version)
    key = tmp_path / "key"
    key.touch()
    # A shell leaves ~ as it is behind --ssh-identity-file=.
    options = ["-np", "1", "-H", "node1", "-p", "2222", "--ssh-identity-file=~/key"]
    arguments = noted(tmp_path, [*options, "true"], {"HOME": str(tmp_path)})
    assert after(arguments, option[1]) == [f"-p 2222 -i {key}"]
    assert arguments[arguments.index(option[1]) - 1] == option[0]
    # Whether a host is the right one stays ssh's business.
    assert "StrictHostKeyChecking" not in " ".join(arguments)


@pytest.mark.parametrize("hosts", ["localhost:4", "127.0.0.1:4", f"{socket.gethostname()}:4"])
def test_this_machine_by_name_is_this_machine(tmp_path: Path, hosts: str) -> None:
    fake_mpirun(tmp_path, NOTE)
    arguments = noted(tmp_path, ["-np", "2", "-H", hosts, "true"], {})
    assert after(arguments, "--host") == ["localhost:2"]
    assert after(arguments, "-x") == []


@pytest.mark.parametrize("option", ["--hostfile", "-hostfile"])
def test_a_host_file(tmp_path: Path, option: str) -> None:
    def check(file: Path) -> None:
        arguments = noted(tmp_path, ["-np", "7", option, str(file), "true"], {})
        assert after(arguments, "--host") == ["node1:2,node2:3,node3:1,node4:1"]

    fake_mpirun(tmp_path, NOTE)
    file = tmp_path / "hosts"
    file.write_text("# ours\nnode1 slots=2  # fast\n\nnode2:3\nnode3 slots = 1\nnode4\nnode5\n")
    check(file)
    file.write_text("\ufeffnode1 slots=2\r\nnode2:3\r\nnode3\r\nnode4\r\n")  # a Windows editor's
    check(file)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-H", "node1:2"], ["-np 3", "2 slots", "node1:2"]),
        (["-H", "node1:2,node2:2,node1:4"], ["node1 comes twice"]),
        (["-H", "node1:0"], ["'0'", "node1:4"]),
        (["-H", "node1:x"], ["'x'"]),
        (["-H", "node1:"], ["''"]),
        (["-H", "node1:9999999"], ["'9999999'"]),
        (["-H", ""], ["no host name"]),
        (["-H", "node1,,node2"], ["''", "no host name"]),
        (["-H", "-oProxyCommand=id:4"], ["-H"]),
        (["-H=-oProxyCommand:4"], ["no host name"]),
        (["-H", "me@node1:4"], ["'me@node1'", "~/.ssh/config"]),
        (["-H", "[::1]:4"], ["~/.ssh/config"]),
        (["-H", "fe80::1:4"], ["an IPv6 address belongs in ~/.ssh/config"]),
        (["-H", "node1;id:4"], ["no host name"]),
        (["-H", "node1:4", "--hostfile", "x"], ["not allowed with"]),
        (["--hostfile", "{tmp}/none"], ["{tmp}/none", "No such file"]),
        (["--hostfile", "{tmp}/empty"], ["no host in it"]),
        (["--hostfile", "{tmp}/bad"], ["line 2", "slots=4"]),
        (["-H", "node1:4", "-p", "0"], ["'0'", "65535"]),
        (["-H", "node1:4", "-p", "22x"], ["'22x'"]),
        (["-H", "node1:4", "-i", "{tmp}/none"], ["{tmp}/none", "private key"]),
        (["-H", "node1:4", "-i", "{tmp}/a key"], ["a key", "~/.ssh/config"]),
        (["-x", "A-B"], ["A-B", "NAME=VALUE"]),
        (["-x", "HVD_NOT_SET"], ["HVD_NOT_SET", "export"]),
        (["-x", "=sesame"], ["NAME=VALUE"]),
        (["--mpi-args", "'open"], ["--mpi-args"]),
    ],
)
def test_errors_of_the_user(tmp_path: Path, options: list[str], words: list[str]) -> None:
    fake_mpirun(tmp_path, "note()")
    for name, text in {"empty": "# none\n", "bad": "node1\nnode2 cores=4\n", "a key": ""}.items():
        (tmp_path / name).write_text(text)
    filled = [option.replace("{tmp}", str(tmp_path)) for option in options]
    result = run(tmp_path, ["-np", "3", *filled, "true"])
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("hvdrun: ") and "sesame" not in result.stderr
    for word in words:
        assert word.replace("{tmp}", str(tmp_path)) in result.stderr
    assert not (tmp_path / "facts").exists()
    assert left_of(tmp_path) == []


def test_variables_of_ranks_here(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, NOTE)
    options = ["-np", "1", "-x", "A=b=c d", "--env", "B=", "-x", "C"]
    arguments = noted(tmp_path, [*options, "true"], {"C": "mine", "B": "before"})
    env = facts(tmp_path)["env"]
    assert (env["A"], env["B"], env["C"], env["HVD_RESTART"]) == ("b=c d", "", "mine", "0")
    assert "-x" not in arguments


def test_a_program_is_found_on_the_path_that_ranks_get(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, NOTE)
    program = tmp_path / "programs" / "mine"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    noted(tmp_path, ["-np", "1", "-x", f"PATH={program.parent}:{os.environ['PATH']}", "mine"], {})


def test_mpi_arguments_come_last(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, NOTE)
    arguments = noted(tmp_path, ["-np", "2", "--mpi-args=--mca btl 'a b'", "true"], {})
    end = arguments.index("-np")
    assert arguments[end - 4 : end] == ["--tag-output", "--mca", "btl", "a b"]


def test_dry_run_prints_a_line_that_works_and_starts_nothing(tmp_path: Path) -> None:
    mpirun = fake_mpirun(tmp_path, "note(arguments=sys.argv)")
    options = ["-np", "2", "-H", "node1:2", "-x", "MINE=sesame", "--dry-run"]
    result = run(tmp_path, [*options, "echo", "a b", "$HOME"])
    assert (result.returncode, result.stderr) == (0, "")
    assert not (tmp_path / "facts").exists() and left_of(tmp_path) == []
    words = shlex.split(result.stdout)
    assert words[0] == str(mpirun) and "MINE" in after(words, "-x")
    assert words[-3:] == ["=echo", "=a%20b", "=%24HOME"]
    assert "sesame" not in result.stdout
