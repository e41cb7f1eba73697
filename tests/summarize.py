"""Adds up what ran, from the reports that Bazel and pytest wrote, and nothing else.

    python tests/summarize.py --bazel core=events.json:0 --pytest e2e=e2e.xml:0

Each argument is NAME=FILE:EXIT, with the exit status of the command that wrote FILE. Prints a line
per failure, a line per group, and last `N passed, N failed` (and `, N skipped` when there are any).
What cannot be counted is a failure: a report that is missing, truncated or empty, a target that did
not build, a command that failed although its report shows no failure.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BAZEL_TESTS_FAILED = 3


@dataclass
class Counts:
    """What one group contributes. `failures` holds one sentence per failed test."""

    passed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.skipped += other.skipped
        self.failures += other.failures


def failure(sentence: str) -> Counts:
    return Counts(failures=[sentence])


def count_junit(path: Path, name: str) -> Counts:
    """Test cases of a JUnit-like file, as gtest, Bazel and pytest write it."""
    try:
        root = ET.parse(path).getroot()
    except FileNotFoundError:
        return failure(f"{name}: no report at {path}")
    except (ET.ParseError, OSError) as error:
        return failure(f"{name}: unreadable report {path}: {error}")
    counts = Counts()
    for case in root.iter("testcase"):
        title = ".".join(filter(None, [case.get("classname"), case.get("name")]))
        if case.find("failure") is not None or case.find("error") is not None:
            counts.failures.append(f"{name}: {title}")
        elif (
            case.find("skipped") is not None
            or case.get("status") == "notrun"  # gtest's DISABLED_ tests.
            or case.get("result") in ("skipped", "suppressed")
        ):
            counts.skipped += 1
        else:
            counts.passed += 1
    if counts.passed + counts.skipped + len(counts.failures) == 0:
        return failure(f"{name}: the report {path} holds no test")
    return counts


def count_pytest(name: str, path: Path, exit_code: int) -> Counts:
    counts = count_junit(path, name)
    if exit_code != 0 and not counts.failures:
        counts.failures.append(f"{name}: pytest ended with {exit_code} without naming a failure")
    return counts


def read_events(path: Path) -> list[dict[str, Any]] | None:
    """The build events, or None when the file is missing or was not written to its end."""
    try:
        events = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError):
        return None
    if not events or not events[-1].get("lastMessage"):
        return None
    return events


def count_bazel(name: str, path: Path, exit_code: int) -> Counts:
    """Tests of one `bazel test --build_event_json_file`: only those of this invocation."""
    events = read_events(path)
    if events is None:
        return failure(f"{name}: bazel's events {path} are missing or end too early")
    counts = Counts()
    tested: set[str] = set()
    for event in events:
        if "testResult" in event:
            label = event["id"]["testResult"]["label"]
            tested.add(label)
            counts.add(_count_test_result(f"{name}: {label}", event["testResult"]))
    unbuilt = sorted(_without_result(events) - tested)
    counts.failures += [f"{name}: {label} did not build or did not run" for label in unbuilt]
    # 3 is "built, and tests failed". A BUILD file that does not load ends in 1 and names nobody.
    if exit_code not in (0, BAZEL_TESTS_FAILED) and not unbuilt:
        counts.failures.append(
            f"{name}: bazel ended with {exit_code}: a package did not load, or the build stopped"
        )
    elif exit_code != 0 and not counts.failures:
        counts.failures.append(f"{name}: bazel ended with {exit_code} without naming a failure")
    if not tested and not counts.failures:
        counts.failures.append(f"{name}: bazel ran no test")
    return counts


def _count_test_result(name: str, result: dict[str, Any]) -> Counts:
    status = result.get("status", "NO_STATUS")
    report = next(
        (o.get("uri", "") for o in result.get("testActionOutput", []) if o["name"] == "test.xml"),
        "",
    )
    if not report.startswith("file://"):
        return failure(f"{name}: {status}, and no test.xml")
    counts = count_junit(Path(urllib.parse.unquote(report[len("file://") :])), name)
    if status not in ("PASSED", "FLAKY") and not counts.failures:
        # A crash after the last test, a leak, a timeout: gtest's own report knows nothing of it.
        counts.failures.append(f"{name}: {status}, although no test case failed")
    return counts


def _without_result(events: Iterable[dict[str, Any]]) -> set[str]:
    """Labels that should have built or run and did not."""
    labels: set[str] = set()
    for event in events:
        identity = event.get("id", {})
        if "testSummary" in identity:
            labels.add(identity["testSummary"]["label"])
        elif "targetCompleted" in identity and not event.get("completed", {}).get("success"):
            labels.add(identity["targetCompleted"]["label"])
        elif "aborted" in event and "unconfiguredLabel" in identity:
            labels.add(identity["unconfiguredLabel"]["label"])
    return labels


def _argument(text: str) -> tuple[str, Path, int]:
    name, _, rest = text.partition("=")
    path, _, exit_code = rest.rpartition(":")
    if not name or not path or not exit_code.lstrip("-").isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE:EXIT")
    return name, Path(path), int(exit_code)


def last_line(counts: Counts) -> str:
    line = f"{counts.passed} passed, {len(counts.failures)} failed"
    return f"{line}, {counts.skipped} skipped" if counts.skipped else line


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--bazel", action="append", default=[], type=_argument)
    parser.add_argument("--pytest", action="append", default=[], type=_argument)
    args = parser.parse_args(argv)
    groups = [(name, count_bazel(name, path, code)) for name, path, code in args.bazel]
    groups += [(name, count_pytest(name, path, code)) for name, path, code in args.pytest]
    total = Counts()
    for name, counts in groups:
        print(f"{name}: {last_line(counts)}")
        total.add(counts)
    if not groups:
        total.failures.append("no report was given")
    for sentence in total.failures:
        print(f"FAILED {sentence}")
    print(last_line(total))
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
