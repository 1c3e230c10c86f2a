# SPDX-License-Identifier: Apache-2.0
"""The build stamp: a library for another TensorFlow is refused with both versions named."""

from __future__ import annotations

import importlib.util
import json
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "hvd_tf" / "_internal" / "build_stamp.py"


@pytest.fixture
def stamp(tmp_path: Path) -> ModuleType:
    """The module, as if it stood in tmp_path beside a library for tensorflow-cpu 2.15.1."""
    (tmp_path / "_internal").mkdir()
    module_file = tmp_path / "_internal" / "build_stamp.py"
    module_file.write_text(SOURCE.read_text())
    (tmp_path / "_native.so").write_bytes(b"")
    info = {"tensorflow_distribution": "tensorflow-cpu", "tensorflow_version": "2.15.1"}
    (tmp_path / "_build_info.json").write_text(json.dumps(info))
    spec = importlib.util.spec_from_file_location("stamp", module_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_right_version_passes(stamp: ModuleType) -> None:
    stamp.check_build("2.15.1")


def test_another_version_is_refused_with_the_remedy(stamp: ModuleType) -> None:
    with pytest.raises(ImportError) as error:
        stamp.check_build("2.21.0")
    text = str(error.value)
    assert "compiled for tensorflow-cpu 2.15.1" in text
    assert "TensorFlow 2.21.0 is installed" in text
    assert "pip install --force-reinstall --no-deps --no-cache-dir ." in text


@pytest.mark.parametrize(
    ("distributed", "running", "fails"),
    [
        ("2.22.0.dev20260101", "2.22.0-dev20260101", False),
        ("2.16.0rc1", "2.16.0-rc1", False),
        ("2.15.0+nv24.3", "2.15.0", False),
        ("2.14.0.600", "2.14.0", False),
        ("2.15.0.post1", "2.15.0", False),
        ("2.22.0.dev20260101", "2.22.0-dev20260102", True),
        ("2.16.0rc1", "2.16.0", True),
        ("2.16.0", "2.16.0-rc1", True),
        ("2.14.0.600", "2.14.1", True),
        ("2.15.0.post1", "2.15.1", True),
        ("2.15.1", "of our own", True),
    ],
)
def test_versions_as_distributions_and_as_tensorflow_write_them(
    stamp: ModuleType, tmp_path: Path, distributed: str, running: str, fails: bool
) -> None:
    info = {"tensorflow_distribution": "tf-nightly", "tensorflow_version": distributed}
    (tmp_path / "_build_info.json").write_text(json.dumps(info))
    if fails:
        with pytest.raises(ImportError, match=f"compiled for tf-nightly {re.escape(distributed)}"):
            stamp.check_build(running)
    else:
        stamp.check_build(running)


@pytest.mark.parametrize(("installed", "fails"), [("2.15.1", False), ("2.16.2", True)])
def test_the_installed_distribution_counts_before_the_import(
    stamp: ModuleType, monkeypatch: pytest.MonkeyPatch, installed: str, fails: bool
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: installed)
    if fails:
        with pytest.raises(ImportError, match=f"TensorFlow {installed}"):
            stamp.check_build()
    else:
        stamp.check_build()


def test_another_build_of_a_vendor_is_refused(
    stamp: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {"tensorflow_distribution": "tensorflow", "tensorflow_version": "2.15.0+nv24.3"}
    (tmp_path / "_build_info.json").write_text(json.dumps(info))
    monkeypatch.setattr(metadata, "version", lambda name: "2.15.0+nv24.4")
    with pytest.raises(ImportError, match=r"TensorFlow 2\.15\.0\+nv24\.4 is installed"):
        stamp.check_build()


def test_another_distribution_is_left_for_the_import(
    stamp: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    stamp.check_build()


@pytest.mark.parametrize("name", ["_native.so", "_build_info.json"])
def test_a_missing_library_says_how_to_build(stamp: ModuleType, tmp_path: Path, name: str) -> None:
    (tmp_path / name).unlink()
    with pytest.raises(ImportError, match="pip install -e"):
        stamp.check_build("2.15.1")
