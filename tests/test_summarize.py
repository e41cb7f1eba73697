"""The summarizer never lets something that could not be counted pass silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import summarize

GTEST = """<?xml version="1.0"?><testsuites tests="4" failures="1" disabled="1" errors="0">
<testsuite name="Arena" tests="4"><testcase name="Fits" classname="Arena" status="run"
 result="completed"/><testcase name="Breaks" classname="Arena" status="run" result="completed">
<failure message="x"/></testcase><testcase name="DISABLED_Old" classname="Arena" status="notrun"
 result="suppressed"/><testcase name="NeedsGpu" classname="Arena" status="run" result="skipped">
<skipped message="no GPU"/></testcase></testsuite></testsuites>"""

PASSING = '<testsuites><testsuite><testcase classname="a" name="b"/></testsuite></testsuites>'


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def result(xml: Path | None, status: str = "PASSED", label: str = "//a:a_test") -> dict[str, Any]:
    outputs = [{"name": "test.xml", "uri": f"file://{xml}"}] if xml else []
    return {
        "id": {"testResult": {"label": label}},
        "testResult": {"status": status, "testActionOutput": outputs},
    }


def events(path: Path, *items: dict[str, Any], complete: bool = True) -> Path:
    lines = [json.dumps(item) for item in items]
    if complete:
        lines.append('{"id":{"progress":{}},"lastMessage":true}')
    return write(path, "\n".join(lines))


def last(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_counts_gtest_cases_one_by_one(tmp_path: Path) -> None:
    counts = summarize.count_junit(write(tmp_path / "test.xml", GTEST), "arena")
    assert (counts.passed, counts.skipped) == (1, 2)
    assert counts.failures == ["arena: Arena.Breaks"]


def test_sums_bazel_and_pytest_into_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bep = events(tmp_path / "bep", result(write(tmp_path / "a.xml", PASSING)))
    report = write(tmp_path / "p.xml", PASSING)
    assert summarize.main(["--bazel", f"b={bep}:0", "--pytest", f"p={report}:0"]) == 0
    assert last(capsys) == "2 passed, 0 failed"


def test_skipped_tests_are_named_in_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = write(tmp_path / "p.xml", GTEST)
    assert summarize.main(["--pytest", f"p={report}:1"]) == 1
    assert last(capsys) == "1 passed, 1 failed, 2 skipped"


@pytest.mark.parametrize("text", [None, "", PASSING[:40], "<testsuites/>"])
def test_a_report_that_cannot_be_counted_is_a_failure(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "report.xml"
    if text is not None:
        write(path, text)
    assert len(summarize.count_pytest("p", path, 0).failures) == 1


def test_a_pytest_that_died_after_a_clean_report_is_a_failure(tmp_path: Path) -> None:
    path = write(tmp_path / "p.xml", PASSING)
    assert len(summarize.count_pytest("p", path, 137).failures) == 1


@pytest.mark.parametrize("complete", [False, True])
def test_bazel_events_without_an_end_or_without_tests_are_a_failure(
    tmp_path: Path, complete: bool
) -> None:
    items = [] if complete else [result(write(tmp_path / "a.xml", PASSING))]
    path = events(tmp_path / "bep", *items, complete=complete)
    counts = summarize.count_bazel("b", path, 0)
    assert (counts.passed, len(counts.failures)) == (0, 1)


def test_missing_bazel_events_are_a_failure(tmp_path: Path) -> None:
    assert len(summarize.count_bazel("b", tmp_path / "none", 0).failures) == 1


def test_a_target_that_did_not_build_is_a_failure_beside_those_that_passed(tmp_path: Path) -> None:
    path = events(
        tmp_path / "bep",
        result(write(tmp_path / "a.xml", PASSING)),
        {"id": {"targetCompleted": {"label": "//a:broken_test"}}, "completed": {}},
        {"id": {"testSummary": {"label": "//a:broken_test"}}, "testSummary": {}},
    )
    counts = summarize.count_bazel("b", path, 1)
    assert counts.passed == 1
    assert counts.failures == ["b: //a:broken_test did not build or did not run"]


def test_a_package_that_did_not_load_is_a_failure_even_beside_a_failed_test(tmp_path: Path) -> None:
    path = events(tmp_path / "bep", result(write(tmp_path / "a.xml", GTEST), "FAILED"))
    assert len(summarize.count_bazel("b", path, 1).failures) == 2
    assert len(summarize.count_bazel("b", path, 3).failures) == 1


@pytest.mark.parametrize("status", ["FAILED", "TIMEOUT", "INCOMPLETE"])
def test_a_crash_after_the_last_test_case_is_a_failure(tmp_path: Path, status: str) -> None:
    path = events(tmp_path / "bep", result(write(tmp_path / "a.xml", PASSING), status))
    counts = summarize.count_bazel("b", path, 3)
    assert (counts.passed, len(counts.failures)) == (1, 1)


def test_a_passed_target_without_xml_is_a_failure(tmp_path: Path) -> None:
    path = events(tmp_path / "bep", result(None))
    assert len(summarize.count_bazel("b", path, 0).failures) == 1


def test_no_report_at_all_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert summarize.main([]) == 1
    assert last(capsys) == "0 passed, 1 failed"
