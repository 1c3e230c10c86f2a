# SPDX-License-Identifier: Apache-2.0
"""The layers: who may include and import whom. Read from the sources, nothing is imported."""

from __future__ import annotations

import ast
import graphlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# --- C++ ----------------------------------------------------------------------

# What a transport may know of the core: words, not stages.
CORE_FOR_TRANSPORTS = (
    "types rows span status log options transport backend doorbell build_stamp batch_times "
    "comm_stats host_map lanes process_set"
)
FOR_TRANSPORTS = rf"core/({'|'.join(CORE_FOR_TRANSPORTS.split())})\.h|cpu/\w+\.h|transport/\w+\.h"
# What the control plane may know of the core: words too. It decides, and executes nothing.
CORE_FOR_CONTROL = (
    "types status options request ready_batch tuning shared_bytes coding decimal process_set trace "
    "host_map quoted span"
)
CHOOSER = "transport/backends.cc"
# For each folder of tf_ops/, or file, what may be included there of ours. The longest one counts.
INCLUDES = {
    "core": r"(core|core/control|core/verbs|cpu)/\w+\.h",
    "core/control": rf"core/({'|'.join(CORE_FOR_CONTROL.split())})\.h|core/(control|verbs)/\w+\.h",
    "core/verbs": r"(core|core/verbs|cpu)/\w+\.h",
    "cpu": r"cpu/\w+\.h|core/(types|rows|span|status|quoted)\.h",
    "transport": rf"{FOR_TRANSPORTS}|transport/collectives/\w+\.h",
    "transport/collectives": rf"{FOR_TRANSPORTS}|transport/collectives/\w+\.h",
    "transport/shm": rf"{FOR_TRANSPORTS}|transport/(collectives|shm)/\w+\.h",
    "transport/mpi": rf"{FOR_TRANSPORTS}|transport/(collectives|mpi)/\w+\.h",
    "transport/device": rf"{FOR_TRANSPORTS}|transport/(collectives|device)/\w+\.h",
    "transport/cuda": rf"{FOR_TRANSPORTS}|transport/(device|cuda)/\w+\.h",
    CHOOSER: rf"{FOR_TRANSPORTS}|transport/\w+/\w+\.h",
    "adapter": r"(adapter|core|core/verbs|cpu)/\w+\.h|transport/backends\.h",
}
# Headers of others, and the only files that may include them.
FOREIGN = {
    r"mpi(-ext)?\.h": r"transport/mpi/\w+\.(cc|h)",
    r"nccl\w*\.h": r"transport/cuda/\w+\.\w+",
    r"(cuda|cuda_runtime|cuda_fp16|cuda_bf16)\w*\.h": r"transport/cuda/\w+\.\w+",
    r"(tensorflow|absl|tsl|xla|third_party|google|unsupported|Eigen)/.*": r"adapter/\w+\.(cc|h)",
}


def cpp_violations(tf_ops: Path) -> list[str]:
    """What breaks the rules above, one line each."""
    found = []
    for path in sorted(tf_ops.rglob("*")):
        if path.suffix in (".cc", ".h", ".cu"):
            name = path.relative_to(tf_ops).as_posix()
            homes = [home for home in INCLUDES if name == home or name.startswith(f"{home}/")]
            folder = max(homes, key=len, default="")
            found += [f"{name}:{n}: {what}" for n, what in _cpp_file(folder, name, path)]
    return found


def _cpp_file(folder: str, name: str, path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if re.match(r"\s*#\s*(el)?if.*\bHVD_WITH_", line) and name != CHOOSER:
            yield number, f"HVD_WITH_ outside {CHOOSER}"
        include = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if include is None:
            continue
        header = include[2]
        homes = [home for pattern, home in FOREIGN.items() if re.fullmatch(pattern, header)]
        if homes and not re.fullmatch(homes[0], name):
            yield number, f"{header} belongs into {homes[0]}"
        elif include[1] == '"' and not homes and not re.fullmatch(INCLUDES.get(folder, ""), header):
            yield number, f"{folder or name} may not include {header}"


def units(tf_ops: Path) -> dict[str, set[str]]:
    """What each unit includes of ours: a header with the files that implement it.

    leader_log.cc implements leader.h: no other header that it includes has as much of its name.
    """
    found: dict[str, set[str]] = {}
    for path in sorted(tf_ops.rglob("*")):
        if path.suffix in (".cc", ".h", ".cu"):
            pattern = r'(?m)^#include "((?:core|cpu|transport|adapter)/[\w/]+)\.h"'
            included = set(re.findall(pattern, path.read_text()))
            unit = path.relative_to(tf_ops).with_suffix("").as_posix()
            if path.suffix != ".h" and not path.with_suffix(".h").exists():
                shared = {one: len(os.path.commonprefix([one, unit])) for one in included}
                unit = max(sorted(shared), key=shared.__getitem__, default=unit)
            found.setdefault(unit, set()).update(included - {unit})
    return found


# --- Python -------------------------------------------------------------------

# From the top down. A module imports from lower lines only, a package also from itself.
# Whether a module is in _internal/ makes no difference: its name says which one it is.
FLOORS = [
    "__init__",
    "as_horovod horovod",
    "api",
    "estimator",
    "optimizer tape hooks functions",
    "keras",
    "delta_optimizer elastic",
    "optimizer_wrapper accumulation root_variables meeting",
    "run_rank",
    "gradients variables facts last_rank sync_batch_norm",
    "objects",
    "ops",
    "compression gpu util",
    "runtime tracing",
    "registration",
    "process_sets failure stacks",
    "uncaught",
    "blame scopes step_data",
    "op_names",
    "eager_words",
    "known_bytes",
    "features reduce_ops world counts",
    "native names graph_names graph_order presence unique_rows",
    "compat lineage notices version run",
    "commits",
    "failure_report build_stamp caller causes exceptions exit_status intel_fabric job_starts "
    "launched mpi_start nccl new_starts pickling shown_module",
]
# Beside the floors: exactly what these may import of ours.
BESIDE = {
    # Ranks agree on the number of batches by a collective. They say when they stop early. The
    # Estimator's toolkit may use it.
    "data": "facts ops runtime process_sets native names compat blame causes new_starts scopes",
    "launch": "launcher caller failure_report",
    "launcher": "failure_report notices presence build_stamp commits job_starts config_file nccl "
    "version",
    # It reads YAML, which the standard library does not.
    "config_file": "launcher",
    # Reads files, on machines without TensorFlow too.
    "timeline": "",
    # Other processes find it by its place.
    "horovod_path": "as_horovod",
    # Its ranks find the library by name, because they time other libraries as well.
    "bench": "launcher",
}
# Started where TensorFlow is not wanted: the standard library only.
STDLIB_ONLY = (
    *(
        "__init__",
        "as_horovod",
        "horovod_path",
        "launch",
        "launcher",
        "failure_report",
        "notices",
        "presence",
        "version",
    ),
    "build_stamp",
    "caller",
    "causes",
    "commits",
    "exceptions",
    "job_starts",
    "nccl",
)
# Python 3.9 does not know them. The test on other versions is enough.
STDLIB = getattr(sys, "stdlib_module_names", None)


def python_violations(package: Path) -> list[str]:
    """What breaks the rules above, one line each."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        for number, what in _python_file(parts, path):
            found.append(f"{path.relative_to(package)}:{number}: {what}")
    return found


def _python_file(parts: tuple[str, ...], path: Path) -> Iterator[tuple[int, str]]:
    if parts == ("_internal", "__init__"):
        return
    module = parts[1] if parts[0] == "_internal" else parts[0]
    if module not in BESIDE and _floor(module) is None:
        yield 1, f"{module} stands in no line of the table"
        return
    for number, name in _imports(path, parts):
        if name == "hvd_tf" or name.startswith("hvd_tf."):
            inner = name.replace("hvd_tf._internal", "hvd_tf", 1)
            target = (inner.split(".") + ["__init__"])[1]
            if not _may_import(module, target):
                yield number, f"{module} may not import {target}"
        elif module in STDLIB_ONLY and STDLIB and name.split(".")[0] not in STDLIB:
            yield number, f"{module} may not import {name}: the standard library only"


def _may_import(module: str, target: str) -> bool:
    if module == target:
        return True
    if module in BESIDE:
        return target in BESIDE[module].split()
    above, below = _floor(module), _floor(target)
    if target == "data" and module in ("api", "estimator"):
        return True
    if below is None:
        return module == "__init__" and target in BESIDE
    return above is not None and above < below


def _floor(module: str) -> int | None:
    return next((n for n, line in enumerate(FLOORS) if module in line.split()), None)


def _imports(path: Path, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Absolute names of what the file imports, wherever in it, with line numbers."""
    here = ["hvd_tf", *parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                # `from hvd_tf import ops` imports a module, `from hvd_tf.ops import x` a name.
                packages = (["hvd_tf"], ["hvd_tf", "_internal"])
                yield node.lineno, ".".join([*base, alias.name] if base in packages else base)


# --- The tree, and proof that the rules can be broken -------------------------


def test_cpp_layers() -> None:
    assert (ROOT / "tf_ops" / "core" / "runtime.h").is_file()
    assert cpp_violations(ROOT / "tf_ops") == []


def test_the_tables_name_what_there_is() -> None:
    """And allow no more than is used: else a rule that has lost its object goes unnoticed."""
    tf_ops = ROOT / "tf_ops"
    assert [folder for folder in INCLUDES if not (tf_ops / folder).exists()] == []
    texts = {
        path.relative_to(tf_ops).as_posix(): path.read_text()
        for path in tf_ops.rglob("*")
        if path.suffix in (".cc", ".h", ".cu")
    }
    for names, users in ((CORE_FOR_TRANSPORTS, "transport/"), (CORE_FOR_CONTROL, "core/control/")):
        used = "".join(text for name, text in texts.items() if name.startswith(users))
        assert [name for name in names.split() if f'"core/{name}.h"' not in used] == []
    for homes in FOREIGN.values():
        assert any(re.fullmatch(homes, name) for name in texts)
    package = ROOT / "hvd_tf"
    modules = {path.stem for path in [*package.iterdir(), *(package / "_internal").iterdir()]}
    named = {*" ".join(FLOORS).split(), *BESIDE, *STDLIB_ONLY}
    assert named - modules == set()


def test_no_cpp_unit_includes_what_stands_on_it() -> None:
    order = list(graphlib.TopologicalSorter(units(ROOT / "tf_ops")).static_order())
    assert order.index("core/control/negotiator") < order.index("core/runtime")


def test_a_circle_of_cpp_units_is_found(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "a.h").write_text("// A.\n")
    (tmp_path / "core" / "a_more.cc").write_text('#include "core/a.h"\n\n#include "core/b.h"\n')
    (tmp_path / "core" / "b.h").write_text('#include "core/a.h"\n')
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(units(tmp_path)).static_order())


def test_python_layers() -> None:
    assert (ROOT / "hvd_tf" / "_internal" / "native.py").is_file()
    assert python_violations(ROOT / "hvd_tf") == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/a.cc", "#include <mpi.h>"),
        ("core/a.cc", '#include "tensorflow/core/framework/op.h"'),
        ("core/a.h", '#include "absl/status/status.h"'),
        ("core/a.cc", "#  include <cuda_runtime.h>"),
        ("core/a.cc", '#include "transport/wire.h"'),
        ("core/a.cc", '#include "adapter/c_api.h"'),
        ("core/control/a.cc", '#include "core/executor.h"'),
        ("core/control/a.cc", '#include "core/transport.h"'),
        ("core/control/a.cc", '#include "cpu/elementwise.h"'),
        ("core/verbs/a.cc", '#include "core/control/leader.h"'),
        ("core/a.cc", "#if HVD_WITH_MPI"),
        ("core/a.cc", "#ifdef HVD_WITH_NCCL"),
        ("transport/a.cc", "#include <mpi.h>"),
        ("transport/mpi/mpi_a.cc", "#include <nccl.h>"),
        ("transport/a.cc", '#include "transport/shm/shm_wire.h"'),
        ("transport/collectives/a.cc", '#include "transport/shm/shm_wire.h"'),
        ("transport/shm/a.cc", '#include "transport/mpi/mpi_wire.h"'),
        ("transport/mpi/a.cc", '#include "transport/shm/shm_wire.h"'),
        ("cpu/a.cc", '#include "core/transport.h"'),
        ("cpu/a.cc", '#include "transport/wire.h"'),
        ("another/a.cc", '#include "core/status.h"'),
        ("transport/a.cc", '#include "core/runtime.h"'),
        ("transport/a.cc", '#include "core/control/negotiator.h"'),
        ("transport/a.cc", '#include "core/executor.h"'),
        ("transport/a.cc", '#include "adapter/c_api.h"'),
        ("transport/mpi/mpi_a.cc", "#elif defined(HVD_WITH_NCCL)"),
        ("adapter/a.cc", "#include <mpi.h>"),
        ("adapter/a.cc", '#include "transport/wire.h"'),
        ("adapter/a.cc", '#include "core/control/message.h"'),
    ],
)
def test_bad_cpp_is_found(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"// First line.\n{text}\n")
    found = cpp_violations(tmp_path)
    assert len(found) == 1 and found[0].startswith(f"{file}:2: ")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/a.cc", '#include "core/runtime.h"\n#include <sys/mman.h>'),
        ("core/a.cc", '#include "core/control/negotiator.h"'),
        ("core/control/a.cc", '#include "core/control/a.h"\n#include "core/request.h"'),
        (CHOOSER, '#if HVD_WITH_MPI\n#include "transport/mpi/mpi_backend.h"\n#endif'),
        ("transport/mpi/mpi_a.cc", '#include <mpi.h>\n#include "core/status.h"'),
        ("adapter/a.cc", '#include "tensorflow/core/framework/op.h"\n#include "core/runtime.h"'),
    ],
)
def test_good_cpp_passes(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert cpp_violations(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("runtime.py", "from hvd_tf import ops"),
        ("runtime.py", "from . import ops"),
        ("runtime.py", "from .ops import allreduce"),
        ("runtime.py", "import hvd_tf.ops"),
        ("runtime.py", "import hvd_tf"),
        ("native.py", "def f():\n    from hvd_tf._internal.runtime import init"),
        ("tape.py", "from hvd_tf._internal.optimizer import DistributedOptimizer"),
        ("gradients.py", "from hvd_tf import variables"),
        ("keras/callbacks.py", "from .. import estimator"),
        ("compat.py", "from hvd_tf import native"),
        ("data.py", "from hvd_tf import hooks"),
        ("launch.py", "import tensorflow as tf"),
        ("launch.py", "from hvd_tf import runtime"),
        ("launcher/mpirun.py", "import numpy"),
        ("bench/worker/rank_main.py", "import hvd_tf as hvd"),
        ("bench/jobs.py", "from hvd_tf import ops"),
        ("novelty.py", ""),
    ],
)
def test_bad_python_is_found(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert len(python_violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("__init__.py", "from hvd_tf.ops import allreduce\nfrom hvd_tf import data"),
        ("keras/__init__.py", "from .callbacks import A\nfrom hvd_tf.keras import callbacks"),
        ("optimizer.py", "import json\nfrom hvd_tf import compat, gradients\nimport tensorflow"),
        ("data.py", "from .runtime import rank"),
        ("launch.py", "import os.path\nfrom hvd_tf import failure_report"),
    ],
)
def test_good_python_passes(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert python_violations(tmp_path) == []
