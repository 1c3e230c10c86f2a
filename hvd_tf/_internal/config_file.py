# SPDX-License-Identifier: Apache-2.0
"""Reads a YAML file of options. Needs PyYAML where it is used."""

from __future__ import annotations

from typing import Any

from hvd_tf._internal.launcher.errors import LaunchError


def read(path: str) -> dict[str, Any]:
    """The file's content: a mapping, empty for an empty file.

    Raises:
      LaunchError: it cannot be read, or is no mapping.
    """
    try:
        import yaml
    except ImportError:
        raise LaunchError(
            f"--config-file {path}: reading YAML needs PyYAML: pip install pyyaml"
        ) from None
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = yaml.safe_load(file)
    except OSError as error:
        raise LaunchError(f"--config-file {path}: {error.strerror}: name a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        first = str(error).replace("\n", " ")
        raise LaunchError(f"--config-file {path} is no YAML: {first}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise LaunchError(f"--config-file {path}: write sections, such as 'params:'")
    return content
