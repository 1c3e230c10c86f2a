# SPDX-License-Identifier: Apache-2.0
"""hvdrun over several hosts: which network interfaces Open MPI is kept off."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import MPICH, OPEN_MPI, fake_mpirun, run

# Open MPI's own default comes first: the option replaces it.
DEFAULT = "127.0.0.1/8,sppp,docker0,virbr0,lxdbr0,podman0,cni-podman0"
OPTION = "--mca btl_tcp_if_exclude"
NODE = "203.0.113.7"
TWO_HOSTS = ["-np", "2", "-H", f"localhost:1,{NODE}:1"]
# The interfaces of the launcher's machine, and their subnets.
MACHINE = """
import ipaddress
from hvd_tf._internal.launcher import local_bridges
networks = {networks}
local_bridges.socket.if_nameindex = lambda: list(enumerate({names}, 1))
subnets = {{name: ipaddress.IPv4Network(text) for name, text in networks.items()}}
local_bridges._subnet = subnets.get
"""
PLAIN = MACHINE.format(networks={}, names=["lo", "eth0"])
NETWORKS = {"docker0": "172.17.0.0/16", "br-0123456789ab": "172.18.0.0/16"}
# With Docker, a network of its user's, and two bridges that are not Docker's.
BRIDGES = MACHINE.format(networks=NETWORKS, names=["br-ex", "br-0123456789abc", *NETWORKS])


def excluded(
    directory: Path, *options: str, change: str = PLAIN, version: str = OPEN_MPI, **env: str
) -> str:
    """The list on mpirun's command line. Empty: there is none."""
    fake_mpirun(directory, "", version)
    home = {"HOME": str(directory), "OMPI_MCA_btl_tcp_if_include": None, **env}
    result = run(directory, [*options, "--dry-run", "true"], home, change=change)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.partition(f"{OPTION} ")[2].partition(" ")[0]


@pytest.mark.parametrize("version", [OPEN_MPI, "mpirun (Open MPI) 4.1.5"])
def test_bridges_that_every_host_has_for_itself(tmp_path: Path, version: str) -> None:
    assert excluded(tmp_path, *TWO_HOSTS, version=version) == DEFAULT


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (NODE, f"{DEFAULT},br-0123456789ab"),
        ("172.17.0.2", f"{DEFAULT.replace('docker0,', '')},br-0123456789ab"),
        ("172.18.255.2", DEFAULT),
        ("no-such-host.invalid", f"{DEFAULT},br-0123456789ab"),
        ("a" * 70, f"{DEFAULT},br-0123456789ab"),  # longer than the resolver takes
    ],
)
def test_a_bridge_that_leads_to_a_host_is_left_in(tmp_path: Path, host: str, expected: str) -> None:
    options = ["-np", "3", "-H", f"localhost:1,{NODE}:1,{host}:1"]
    if host == NODE:
        options = TWO_HOSTS
    assert excluded(tmp_path, *options, change=BRIDGES) == expected


@pytest.mark.parametrize(
    "options",
    [
        ["-np", "2"],
        ["-np", "2", "-H", "localhost:2"],
        ["-np", "2", "-H", f"{NODE}:2"],
        [*TWO_HOSTS, "--network-interfaces", "eth0"],
        [*TWO_HOSTS, "--mpi-args=--mca btl_tcp_if_include eth0"],
        [*TWO_HOSTS, "--mpi-args=--tune settings"],
        [*TWO_HOSTS, "-x", "OMPI_MCA_btl_tcp_if_include=eth0"],
    ],
)
def test_one_host_or_a_choice_of_the_user(tmp_path: Path, options: list[str]) -> None:
    assert excluded(tmp_path, *options) == ""


def test_an_exclusion_of_the_user_is_the_only_one(tmp_path: Path) -> None:
    options = [*TWO_HOSTS, "--mpi-args=--mca btl_tcp_if_exclude lo"]
    assert excluded(tmp_path, *options) == "lo"


def test_a_choice_in_the_environment(tmp_path: Path) -> None:
    assert excluded(tmp_path, *TWO_HOSTS, OMPI_MCA_btl_tcp_if_exclude="lo") == ""


@pytest.mark.parametrize("place", [".openmpi/mca-params.conf", "etc/openmpi-mca-params.conf"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [("btl_tcp_if_include = eth0", ""), ("# btl_tcp_if_include = eth0", DEFAULT)],
)
def test_a_choice_in_a_file(tmp_path: Path, place: str, line: str, expected: str) -> None:
    path = tmp_path / place
    path.parent.mkdir()
    path.write_text(f"btl = ^uct\n  {line}\n")
    assert excluded(tmp_path, *TWO_HOSTS) == expected


def test_mpich_has_no_such_option(tmp_path: Path) -> None:
    assert excluded(tmp_path, *TWO_HOSTS, version=MPICH) == ""


def test_the_subnet_of_a_real_interface(tmp_path: Path) -> None:
    change = """
from hvd_tf._internal.launcher import local_bridges
assert str(local_bridges._subnet("lo")) == "127.0.0.0/8"
assert local_bridges._subnet("no-such-one") is None
"""
    assert excluded(tmp_path, *TWO_HOSTS, change=change).startswith("127.0.0.1/8,")
