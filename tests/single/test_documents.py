# SPDX-License-Identifier: Apache-2.0
"""The documents: their lines' length, and that what they name exists. Nothing is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 100
# A file is looked for from these folders, and beside the document that names it.
ROOTS = (
    *(".", "tf_ops", "tf_ops/core", "tf_ops/core/control", "tf_ops/cpu"),
    *("tf_ops/transport", "tf_ops/adapter"),
    *(f"tf_ops/transport/{room}" for room in ("collectives", "shm", "mpi")),
    *("hvd_tf", "hvd_tf/_internal", "tests/core"),
)
FILE = re.compile(r"[\w.-]+(/[\w.-]+)*\.(cc|h|py|md|yaml|sh|json)|([\w-]+/)+")
BUILT = "build"  # the folder of what make makes
LINK = re.compile(r"\]\(([^)#\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PYTHON = re.compile(r"```python\n.*?```", re.DOTALL)
HVD_NAME = re.compile(r"\bhvd(?:_tf)?((?:\.\w+)+)")
MAKE = re.compile(r"(?:^|`)make ([a-z][a-z-]*)", re.MULTILINE)
DIRECTIVE = re.compile(r"(?m)^::: .*$")  # of the reference; `make docs` looks the name up
VARIABLE = re.compile(r"\bHVD_\w+")


def documents(root: Path) -> list[Path]:
    """The markdown files of the tree that people wrote."""
    folders = [root, *(root / name for name in ("docs", "estimator_examples", "benchmarks"))]
    found = {*root.glob("*.md"), *(path for one in folders[1:] for path in one.rglob("*.md"))}
    return sorted(found)


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Number and text of each line, and whether it is prose: in no block of code, no table."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            yield number, line, False
        else:
            yield number, line, not fenced and not line.lstrip().startswith(("|", "<!--"))


def too_long(text: str) -> list[int]:
    """The numbers of prose lines over WIDTH, but for those that are one word: an address."""
    return [
        number
        for number, line, prose in _lines(text)
        if prose and len(line) > WIDTH and len(line.lstrip("-*> ").split()) > 1
    ]


# --- What documents name ------------------------------------------------------


def missing_files(document: Path, root: Path) -> list[str]:
    """Files and folders of ours that the document names and that are not there."""
    text = document.read_text()
    prose = "\n".join(line for _, line, _ in _lines(text))
    links = [name for name in LINK.findall(prose) if "://" not in name]
    found = [name for name in links if not (document.parent / name).exists()]
    for span in CODE.findall(prose):
        name = span.strip()
        if FILE.fullmatch(name) and _is_ours(name, root) and not _exists(name, document, root):
            found.append(name)
    return found


def _is_ours(name: str, root: Path) -> bool:
    """A path below a folder of ours, or a C++ file. A user's `train.py` is neither."""
    top = name.split("/")[0]
    if top == BUILT:
        return True
    folders = {path.name for base in ROOTS for path in (root / base).glob("*") if path.is_dir()}
    return ("/" in name and top in folders) or name.endswith((".cc", ".h"))


def _exists(name: str, document: Path, root: Path) -> bool:
    if name.startswith(f"{BUILT}/"):  # not there in a fresh clone: a target of make has to make it
        made = re.findall(rf"{BUILT}/[\w./-]+", (root / "Makefile").read_text())
        return name.rstrip("/") in made
    places = [document.parent, *(root / base for base in ROOTS)]
    return any((place / name).exists() for place in places)


def public_names(package: Path) -> dict[str, set[str]]:
    """What `hvd` has, and what those of its names have that are modules: from the sources."""
    modules = {path.stem for path in package.iterdir()} - {"__init__"}
    api, own = package / "_internal" / "api.py", package / "__init__.py"
    names = {"": _all_of(api) | _defined_in(own) | modules}
    for name in sorted(names[""]):
        for path in (package / f"{name}.py", package / name / "__init__.py"):
            if path.is_file():
                names[name] = _all_of(path) or _defined_in(path)
    return names


def _all_of(path: Path) -> set[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            assert len(set(names)) == len(names), f"{path}: __all__ has a name twice"
            return set(names)
    return set()


def _defined_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)  # some are for type checkers only
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return defined | imported


def with_full_names(text: str) -> str:
    """The text, where `hvd` in code that imports hvd_tf.keras under that name is spelled out."""

    def spelled_out(code: re.Match[str]) -> str:
        is_keras = "import hvd_tf.keras as hvd" in code[0]
        return re.sub(r"\bhvd\.", "hvd_tf.keras.", code[0]) if is_keras else code[0]

    return PYTHON.sub(spelled_out, text)


def unknown_names(text: str, names: dict[str, set[str]]) -> list[str]:
    """Dotted names of `hvd` in the text that the sources do not have."""
    found = []
    for match in HVD_NAME.finditer(with_full_names(DIRECTIVE.sub("", text))):
        first, *rest = match[1].strip(".").split(".")
        if first not in names[""] or (rest and first in names and rest[0] not in names[first]):
            found.append(match[0])
    return found


def make_targets(makefile: str) -> set[str]:
    """The targets that are no files."""
    return set(" ".join(re.findall(r"^\.PHONY:(.*)", makefile, re.MULTILINE)).split())


def unknown_targets(text: str, targets: set[str]) -> list[str]:
    """The targets of `make` in code that the Makefile does not have."""
    return [name for name in MAKE.findall(text) if name not in targets]


def variables_of_the_code(root: Path) -> set[str]:
    """Every `HVD_...` that a source, a test or a build file has."""
    files = [root / "Makefile", root / "setup.py", root / "tf_ops" / "CMakeLists.txt"]
    for folder in ("tf_ops", "hvd_tf", "tests"):
        files += (
            path for path in (root / folder).rglob("*") if path.suffix in (".py", ".cc", ".h")
        )
    here = Path(__file__).resolve()
    return {name for path in files if path != here for name in VARIABLE.findall(path.read_text())}


def unknown_variables(text: str, known: set[str]) -> list[str]:
    """Variables in the text that the code does not have; `HVD_WITH_` stands for all of its kind."""
    return [
        name
        for name in VARIABLE.findall(text)
        if name not in known
        and not (name.endswith("_") and any(one.startswith(name) for one in known))
    ]


# --- Knobs --------------------------------------------------------------------

ENTRY = re.compile(r'\{"(HVD_\w+)",\s*(nullptr|"\w+"),\s*&Options::\w+,\s*"([^"]*)"')
ROW = re.compile(r"\| `(HVD_\w+)` \| (?:`(\w+)`)? ?\| ?([^|]*?) ?\|", re.MULTILINE)


def knobs_of_the_code(source: str) -> list[tuple[str, str, str]]:
    """Name, Horovod's name or nothing, default: in the order of the table in options.cc."""
    return [
        (name, "" if alias == "nullptr" else alias.strip('"'), default)
        for name, alias, default in ENTRY.findall(source)
    ]


def knobs_of_the_page(page: str) -> list[tuple[str, str, str]]:
    """The same of the page's first table."""
    table = page.split("| variable |")[1]
    return [(name, alias, default) for name, alias, default in ROW.findall(table)]


# --- The tree, and proof that each check finds something ----------------------


@pytest.mark.parametrize("path", documents(ROOT), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document(path: Path) -> None:
    text = path.read_text()
    assert too_long(text) == []
    assert unknown_names(text, public_names(ROOT / "hvd_tf")) == []
    assert missing_files(path, ROOT) == []
    assert unknown_targets(text, make_targets((ROOT / "Makefile").read_text())) == []
    assert unknown_variables(text, variables_of_the_code(ROOT)) == []


def test_the_documents_are_found() -> None:
    found = {str(path.relative_to(ROOT)) for path in documents(ROOT)}
    assert {"README.md", "CHANGELOG.md", "docs/design.md", "CONTRIBUTING.md"} <= found
    assert "estimator_examples/flights/README.md" in found
    for folder in ("docs/decisions/", "docs/notes/"):
        assert any(name.startswith(folder) for name in found)


def test_the_page_of_knobs_is_the_table_in_the_code() -> None:
    source = (ROOT / "tf_ops" / "core" / "options.cc").read_text()
    knobs = knobs_of_the_code(source)
    # Each entry of the table was understood.
    assert len(knobs) == source.count('{"HVD_') > 10
    assert knobs_of_the_page((ROOT / "docs" / "knobs.md").read_text()) == knobs


def test_long_lines_are_found() -> None:
    long = "word " * 30
    address = "- https://example.org/" + "x" * 100
    text = "\n".join([long, f"| {long} |", "```", long, "```", address, "x" * WIDTH])
    assert too_long(text) == [1]


def test_missing_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "tf_ops" / "core").mkdir(parents=True)
    (tmp_path / "tf_ops" / "core" / "a.cc").touch()
    (tmp_path / "Makefile").write_text("cuda:\n\tcmake -S tf_ops -B build/cuda -G Ninja\n")
    document = tmp_path / "docs" / "a.md"
    document.write_text(
        "`a.cc` `core/a.cc` `tf_ops/core/` `train.py` `b.cc` `core/b.h` `tf_ops/none/`\n"
        "`build/cuda/` `build/none/` `build/cud/`\n"
        "[here](a.md) [there](b.md) [far](https://example.org/c.md)\n"
    )
    assert missing_files(document, tmp_path) == [
        "b.md",
        "b.cc",
        "core/b.h",
        "tf_ops/none/",
        "build/none/",
        "build/cud/",
    ]


def test_unknown_names_are_found() -> None:
    names = public_names(ROOT / "hvd_tf")
    text = "hvd.init() hvd.data.shard(x) hvd.estimator.evaluate hvd.Compression.fp16 hvd.Sum."
    assert unknown_names(text, names) == []
    text = "hvd.add_process_group hvd.data.split() hvd.estimator.fit"
    wrong = ["hvd.add_process_group", "hvd.data.split", "hvd.estimator.fit"]
    assert unknown_names(text, names) == wrong
    assert unknown_names("hvd_tf.bench hvd_tf.benches", names) == ["hvd_tf.benches"]
    code = (
        "```python\nimport hvd_tf.keras as hvd\nhvd.callbacks.X\nhvd.data.shard\n```\nhvd.callbacks"
    )
    assert unknown_names(code, names) == ["hvd_tf.keras.data.shard", "hvd.callbacks"]


def test_unknown_targets_and_variables_are_found() -> None:
    targets = make_targets(".PHONY: help test\n.PHONY: lint\n")
    text = "`make test` and `make tests`\n```\nmake lint\nmake the\n```\nmake it so"
    assert unknown_targets(text, targets) == ["tests", "the", "it"]
    known = {"HVD_SHM", "HVD_WITH_MPI"}
    assert unknown_variables("HVD_SHM=1 HVD_WITH_ HVD_SHMS HVD_WIT_", known) == [
        "HVD_SHMS",
        "HVD_WIT_",
    ]


def test_a_knob_that_differs_is_found() -> None:
    source = (
        '{"HVD_A", "HOROVOD_A", &Options::a, "1", 0, 1, "x"},\n'
        '{"HVD_B", nullptr,\n &Options::b, "", 0'
    )
    assert knobs_of_the_code(source) == [("HVD_A", "HOROVOD_A", "1"), ("HVD_B", "", "")]
    page = "| variable | a |\n|---|---|\n| `HVD_A` | `HOROVOD_A` | 1 | x |\n| `HVD_B` | | | y |\n"
    assert knobs_of_the_page(page) == knobs_of_the_code(source)
    assert knobs_of_the_page(page.replace("| 1 |", "| 2 |")) != knobs_of_the_code(source)
