"""The tools that pack a release: what they refuse, and why."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shipping import bundle, elf, tree, wheel

RULES = [tree.Rule("agent/", "bin/"), tree.Rule("x/one.h", "include/one.h")]


def test_every_input_goes_where_the_first_rule_that_fits_says() -> None:
    assert tree.place(Path("bazel-out/bin/agent/hfagent"), RULES, "bazel-out/bin") == "bin/hfagent"
    assert tree.place(Path("x/one.h"), RULES, "") == "include/one.h"
    everything = [*RULES, tree.Rule("", "rest/")]
    assert tree.place(Path("README.md"), everything, "") == "rest/README.md"


def test_an_input_without_a_rule_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match=r"two\.h"):
        tree.place(Path("x/two.h"), RULES, "")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A real program that needs libc.so.6."""
    copy = tmp_path / "program"
    shutil.copy("/bin/true", copy)
    assert elf.needed(copy) == ["libc.so.6"]
    return copy


def test_a_library_is_renamed_in_place_and_nothing_else_changes(program: Path) -> None:
    before = program.read_bytes()
    elf.rename_libraries(program, {"libc.so.6": "hf_c.so.6", "libz.so.1": "hf_z.so.1"})
    assert elf.needed(program) == ["hf_c.so.6"]
    after = program.read_bytes()
    assert len(after) == len(before)
    differing = [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert len(differing) == len("lib")


def test_a_name_of_another_length_is_refused(program: Path) -> None:
    before = program.read_bytes()
    with pytest.raises(ValueError, match="as long as"):
        elf.rename_libraries(program, {"libc.so.6": "libc-hf.so.6"})
    assert program.read_bytes() == before


def test_the_systems_own_runtime_is_not_shipped() -> None:
    assert bundle.libraries_of([Path("/bin/true")]) == []


def test_the_newest_glibc_that_is_asked_for_is_found_number_by_number() -> None:
    asked = elf.system_versions([Path("/bin/true"), Path("/bin/bash")])
    each = [elf.system_versions([Path(p)])["GLIBC"] for p in ("/bin/true", "/bin/bash")]
    assert asked["GLIBC"] == max(each, key=lambda text: [int(part) for part in text.split(".")])


def test_a_tag_that_promises_too_old_a_glibc_is_refused() -> None:
    wheel.check_tag("py3-none-manylinux_2_36_x86_64", {"GLIBC": "2.34"})
    wheel.check_tag("py3-none-manylinux_2_36_x86_64", {"GLIBC": "2.9"})
    with pytest.raises(SystemExit, match=r"2\.38"):
        wheel.check_tag("py3-none-manylinux_2_36_x86_64", {"GLIBC": "2.38"})
    with pytest.raises(SystemExit, match="no manylinux"):
        wheel.check_tag("py3-none-linux_x86_64", {})
