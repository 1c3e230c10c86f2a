# SPDX-License-Identifier: Apache-2.0
"""docs/mpijob.yaml: every field is one of MPIJob v2beta1, of its type, and fits the others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from launching import facts, fake_mpirun, run
from mpi import ROOT

yaml = pytest.importorskip("yaml")

MANIFEST = ROOT / "docs" / "mpijob.yaml"

# What each field may be: a type, a set of values, or the fields of an object. "?": it may be left
# out. The custom resource's own schema says so. Of a pod there is only what is used here.
QUANTITIES = {"cpu?": str, "memory?": str, "nvidia.com/gpu?": int}
CONTAINER = {
    "name": str,
    "image": str,
    "command?": [str],
    "args?": [str],
    "resources?": {"requests?": QUANTITIES, "limits?": QUANTITIES},
    "volumeMounts?": [{"name": str, "mountPath": str}],
}
VOLUME = {"name": str, "emptyDir": {"medium?": {"", "Memory"}, "sizeLimit?": str}}
REPLICA = {
    "replicas?": int,
    "restartPolicy?": {"Never", "OnFailure"},
    "template": {"metadata?": dict, "spec": {"containers": [CONTAINER], "volumes?": [VOLUME]}},
}
SCHEMA = {
    "apiVersion": {"kubeflow.org/v2beta1"},
    "kind": {"MPIJob"},
    "metadata": {"name": str, "namespace?": str},
    "spec": {
        "slotsPerWorker?": int,
        "runLauncherAsWorker?": bool,
        "mpiImplementation?": {"OpenMPI", "Intel", "MPICH"},
        "sshAuthMountPath?": str,
        "launcherCreationPolicy?": {"AtStartup", "WaitForWorkersReady"},
        "runPolicy?": {
            "cleanPodPolicy?": {"None", "Running", "All"},
            "ttlSecondsAfterFinished?": int,
            "activeDeadlineSeconds?": int,
            "backoffLimit?": int,
            "suspend?": bool,
            "schedulingPolicy?": dict,
            "managedBy?": str,
        },
        "mpiReplicaSpecs": {"Launcher": REPLICA, "Worker?": REPLICA},
    },
}


def violations(value: Any, schema: Any, where: str = "") -> list[str]:
    """One line for each field that is unknown, missing or of another kind."""
    if isinstance(schema, Mapping):
        return _object_violations(value, schema, where)
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: {value!r} is no list"]
        return [
            v for i, item in enumerate(value) for v in violations(item, schema[0], f"{where}[{i}]")
        ]
    if isinstance(schema, set):
        return [] if value in schema else [f"{where}: {value!r} is none of {sorted(schema)}"]
    return [] if type(value) is schema else [f"{where}: {value!r} is no {schema.__name__}"]


def _object_violations(value: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: {value!r} is no object"]
    fields = {name.rstrip("?"): inner for name, inner in schema.items()}
    needed = {name for name in schema if not name.endswith("?")}
    found = [f"{where}.{name}: unknown" for name in sorted(value.keys() - fields.keys())]
    found += [f"{where}.{name}: missing" for name in sorted(needed - value.keys())]
    for name in value.keys() & fields.keys():
        found += violations(value[name], fields[name], f"{where}.{name}")
    return found


@pytest.fixture
def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    return found


def launcher_arguments(manifest: Mapping[str, Any]) -> list[str]:
    (container,) = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    assert container["command"] == ["hvdrun"]
    arguments: list[str] = container["args"]
    return arguments


def test_every_field_is_one_of_the_resource(manifest: dict[str, Any]) -> None:
    assert violations(manifest, SCHEMA) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda m: m["spec"].update(slots=4), ".spec.slots: unknown"),
        (lambda m: m["spec"].update(slotsPerWorker="4"), ".spec.slotsPerWorker: '4' is no int"),
        (lambda m: m["spec"].update(cleanPodPolicy="All"), ".spec.cleanPodPolicy: unknown"),
        (lambda m: m["spec"]["mpiReplicaSpecs"].pop("Launcher"), ".Launcher: missing"),
        (
            lambda m: m.update(apiVersion="kubeflow.org/v1"),
            ".apiVersion: 'kubeflow.org/v1' is none",
        ),
    ],
)
def test_what_is_wrong_is_found(manifest: dict[str, Any], change: Any, found: str) -> None:
    change(manifest)
    assert any(found in line for line in violations(manifest, SCHEMA))


def test_ranks_are_workers_times_slots(manifest: dict[str, Any]) -> None:
    spec = manifest["spec"]
    arguments = launcher_arguments(manifest)
    ranks = int(arguments[arguments.index("-np") + 1])
    assert ranks == spec["mpiReplicaSpecs"]["Worker"]["replicas"] * spec["slotsPerWorker"]


def test_hvdrun_takes_the_arguments_and_the_operators_host_file(
    manifest: dict[str, Any], tmp_path: Path
) -> None:
    fake_mpirun(tmp_path, "note(arguments=sys.argv)")
    # As the operator writes it.
    names = [f"train-worker-{i}.train.default.svc" for i in range(2)]
    hosts = tmp_path / "hostfile"
    hosts.write_text("".join(f"{name} slots=4\n" for name in names))
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    given = ["/etc/mpi/hostfile", "python"]
    replaced = dict(zip(given, [str(hosts), str(program)]))
    arguments = [replaced.get(word, word) for word in launcher_arguments(manifest)]
    result = run(tmp_path, arguments)
    assert result.returncode == 0, result.stderr
    noted = facts(tmp_path)["arguments"]
    assert noted[noted.index("--host") + 1] == ",".join(f"{name}:4" for name in names)
