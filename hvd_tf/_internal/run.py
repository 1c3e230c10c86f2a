# SPDX-License-Identifier: Apache-2.0
"""`run`: calls a function on several ranks, from a notebook or a program. Imports no TensorFlow.

The function and its arguments travel through a file in a private directory, and by MPI to ranks on
other hosts. So do the results, back to rank 0. Nothing listens on a port.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, Optional

from hvd_tf._internal import caller, commits

CALL = "call"
RESULTS = "results"

_ELASTIC = {
    "min_num_proc": "the number of ranks stays the same",
    "max_num_proc": "the number of ranks stays the same",
    "min_np": "the number of ranks stays the same",
    "max_np": "the number of ranks stays the same",
    "slots": "write the slots behind each host, as in hosts='a:4,b:4'",
    "cooldown_range": "hosts do not come and go",
    "host_discovery_script": "pass hosts",
}


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Optional[Mapping[str, Any]] = None,
    num_proc: int = 1,
    min_num_proc: Optional[int] = None,
    max_num_proc: Optional[int] = None,
    slots: Optional[int] = None,
    reset_limit: Optional[int] = None,
    cooldown_range: Optional[Sequence[int]] = None,
    hosts: Optional[str] = None,
    hostfile: Optional[str] = None,
    host_discovery_script: Optional[str] = None,
    start_timeout: Optional[float] = None,
    ssh_port: Optional[int] = None,
    ssh_identity_file: Optional[str] = None,
    disable_cache: Optional[bool] = None,
    output_filename: Optional[str] = None,
    verbose: Optional[int] = None,
    use_gloo: Optional[bool] = None,
    use_mpi: Optional[bool] = None,
    mpi_args: Optional[str] = None,
    network_interface: Optional[str] = None,
    network_interfaces: Optional[str] = None,
    executable: Optional[str] = None,
    np: Optional[int] = None,
    min_np: Optional[int] = None,
    max_np: Optional[int] = None,
) -> list[Any]:
    """Calls a function on every rank of a job of its own, and returns what the ranks returned.

    Args:
      func: calls hvd.init() itself, as a program does. It and its arguments must be picklable.
        With cloudpickle installed that includes functions of a notebook, and lambdas.
      args: its positional arguments.
      kwargs: its keyword arguments.
      num_proc: the number of ranks.
      reset_limit: how often a failed job is started again.
      hosts: such as "a:4,b:4". Default: this machine.
      hostfile: the same from a file.
      start_timeout: seconds until every rank has called hvd.init().
      ssh_port: of ssh on the hosts.
      ssh_identity_file: ssh's key.
      output_filename: a directory for what each rank writes.
      verbose: shows what is run, and where.
      mpi_args: further options of mpirun.
      network_interfaces: for MPI, such as "eth0,eth1". network_interface is an old name of it.
      executable: the Python that the ranks run. Default: this one.
      np: an old name of num_proc.
      disable_cache: accepted for Horovod's sake.
      use_mpi: accepted for Horovod's sake.
      use_gloo: only None or False.
      min_num_proc: only None, like max_num_proc, min_np, max_np, slots, cooldown_range and
        host_discovery_script: they belong to jobs whose hosts come and go.

    Returns:
      A list of the ranks' results, in the order of their ranks.

    Raises:
      ValueError: arguments that exclude each other, or that cannot be pickled.
      NotImplementedError: an argument that asks for what is not offered.
      RuntimeError: the job failed. Its output says why.
    """
    _refuse(dict(locals()))
    options = {
        "-np": num_proc if np is None else np,
        "-H": hosts,
        "--hostfile": hostfile,
        "--reset-limit": reset_limit,
        "--start-timeout": start_timeout,
        "-p": ssh_port,
        "-i": ssh_identity_file,
        "--output-filename": output_filename,
        "--mpi-args": mpi_args,
        "--network-interfaces": _joined(network_interfaces or network_interface),
    }
    words = _words(options)
    if verbose:
        words.append("--verbose")
    return _results(func, tuple(args), dict(kwargs or {}), words, executable or sys.executable)


def _refuse(given: Mapping[str, Any]) -> None:
    """Raises the error of arguments of `run` that exclude each other or are not offered."""
    if given["hosts"] is not None and given["hostfile"] is not None:
        raise ValueError("pass hosts or hostfile, not both")
    if given["use_gloo"] and given["use_mpi"]:
        raise ValueError("pass use_gloo or use_mpi, not both")
    if given["use_gloo"]:
        raise NotImplementedError("use_gloo is not offered: leave it out, MPI is used")
    for name, remedy in _ELASTIC.items():
        if given[name] is not None:
            raise NotImplementedError(f"{name} is not offered: {remedy}")


def _words(options: Mapping[str, Any]) -> list[str]:
    """The options of hvdrun's command line that are not None."""
    words = []
    for name, value in options.items():
        if value is not None:  # long ones joined, for a value may begin with a dash
            words += [f"{name}={value}"] if name.startswith("--") else [name, str(value)]
    return words


def _results(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    words: list[str],
    python: str,
) -> list[Any]:
    """What the ranks return. `words` are hvdrun's options, `python` is what the ranks run."""
    # The modules that the call needs are found by the path, which therefore comes first.
    payload = pickle.dumps((_split_path(), _pickled(func, args, kwargs)))
    with tempfile.TemporaryDirectory(prefix="hvd-run-") as directory:  # mode 0700
        Path(directory, CALL).write_bytes(payload)
        rank = [python, "-m", "hvd_tf._internal.run_rank", directory]
        program = (
            *commits.program(),
            getattr(func, "__module__", ""),
            getattr(func, "__qualname__", type(func).__qualname__),
            _digest((args, sorted(kwargs.items()))),
        )
        own = {commits.PROGRAM_VARIABLE: repr(program), **caller.variables(directory)}
        launcher = [sys.executable, "-m", "hvd_tf.launch", *words, *rank]
        status = _status_of(launcher, {**os.environ, **own})
        if status:
            raise RuntimeError(f"run: the job failed with status {status}: its output says why")
        results: list[Any] = pickle.loads(Path(directory, RESULTS).read_bytes())
    return results


def _status_of(launcher: Sequence[str], env: Mapping[str, str]) -> int:
    """Runs it. An exception meanwhile, as by a Ctrl-C, ends the job first; a second one at once."""
    first: Optional[BaseException] = None
    # A Ctrl-C of the terminal reaches this process only, which passes it on once.
    process = subprocess.Popen(launcher, env=env, start_new_session=True)
    while True:
        try:
            status = process.wait()
        except BaseException as error:  # signal handlers raise what they like
            first = first or error
            process.send_signal(caller.end_signal())
            continue
        if first is not None:
            raise first
        return status


def _split_path() -> tuple[list[str], list[str]]:
    """Where modules are looked for: what is the program's, and what comes with its Python."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    program: list[str] = []
    python: list[str] = []
    for entry in map(os.path.abspath, sys.path):  # "" is the working directory
        path = Path(entry)
        packages = path.name in ("site-packages", "dist-packages")
        of_python = packages or stdlib in (path, *path.parents) or path.suffix == ".zip"
        (python if of_python else program).append(entry)
    return program, python


class _Digester(pickle.Pickler):
    """Classes and functions count by their names, so that those of __main__ and lambdas do too."""

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, (type, FunctionType)):
            return None
        code = getattr(obj, "__code__", None)
        return obj.__module__, obj.__qualname__, code.co_code if code else b""


def _digest(arguments: Any) -> str:
    """Tells arguments from others, for commits. Not of their repr: that of an array is cut short.

    Equal ones may differ, as sets of strings do in another process. Their training begins anew. So
    does that of what only cloudpickle can pickle.
    """
    digest = hashlib.sha256()
    target: Any = SimpleNamespace(write=digest.update)
    try:
        _Digester(target).dump(arguments)
    except Exception:  # pickle lets through whatever __reduce__ raises
        digest.update(os.urandom(16))
    return digest.hexdigest()


def _pickled(func: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    try:
        import cloudpickle as pickler

        remedy = ""
    except ImportError:
        pickler = pickle
        remedy = ". With cloudpickle (pip install cloudpickle) more functions can be passed"
        if getattr(func, "__module__", None) == "__main__":
            raise ValueError(
                f"run: the function is defined in __main__, where ranks do not find it: put it "
                f"into a module{remedy}"
            ) from None
    try:
        data: bytes = pickler.dumps((func, args, kwargs))
    except Exception as error:  # pickle lets through whatever __reduce__ raises
        raise ValueError(
            f"run: the function or an argument cannot be pickled: {error}{remedy}"
        ) from error
    return data


def _joined(names: Any) -> Any:
    """A list of names as the option has it, with commas."""
    return names if names is None or isinstance(names, str) else ",".join(map(str, names))
