"""Makes the Python wheel: the package, libhyperframes.so in it, and the libraries that this needs.

    python3 -m shipping.wheel --version 0.1.0 --tag py3-none-manylinux_2_36_x86_64 ...

Written here in a few
lines because the tools that write wheels want to compile or to download: setuptools a build
environment, auditwheel a pure-Python wheel first and a policy that knows this glibc.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from shipping import bundle, tree

_LIBRARIES = "hyperframes/lib"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # The oldest time that a zip file can hold.


def _metadata(project: dict[str, Any], version: str, readme: str) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {needed}" for needed in project["dependencies"]),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + readme


def check_tag(tag: str, needs: dict[str, str]) -> None:
    """A tag promises a glibc. SystemExit: the files ask for a newer one."""
    promised = re.search(r"manylinux_(\d+)_(\d+)_", tag)
    if promised is None:
        raise SystemExit(f"{tag} is no manylinux_X_Y tag")
    asked = tuple(map(int, needs.get("GLIBC", "0").split(".")))
    if asked > tuple(map(int, promised.groups())):
        raise SystemExit(f"{tag} promises an older glibc than {needs['GLIBC']}, which is needed")


def _record(folder: Path, name: str) -> str:
    """RECORD: every file with its digest and size, itself without."""
    rows = []
    for file, path in tree.files(folder):
        digest = hashlib.sha256(path.read_bytes()).digest()
        text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        rows.append(f"{file},sha256={text},{path.stat().st_size}\n")
    return "".join([*rows, f"{name},,\n"])


def _write_wheel(folder: Path, output: Path) -> None:
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        # The metadata last, as the format recommends: it can be read without seeking far.
        for name, path in sorted(tree.files(folder), key=lambda f: (".dist-info/" in f[0], f[0])):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = (path.stat().st_mode & 0xFFFF) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(info, path.read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--tag", required=True)
    parser.add_argument("--project", type=Path, required=True, help="pyproject.toml")
    parser.add_argument("--readme", type=Path, required=True)
    parser.add_argument("--output-root", default="", help="a prefix of generated files to ignore")
    parser.add_argument("--copy", action="append", type=tree.Rule.parse, default=[])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("inputs", nargs="+", type=Path)
    arguments = parser.parse_args()
    project = tomllib.loads(arguments.project.read_text())["project"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shipped = tree.fill(
            folder, arguments.inputs, arguments.copy, arguments.output_root, _LIBRARIES
        )
        check_tag(arguments.tag, shipped.system_versions)
        info = folder / f"hyperframes-{arguments.version}.dist-info"
        bundle.ship_licenses(shipped.libraries, info / "licenses")
        metadata = _metadata(project, arguments.version, arguments.readme.read_text())
        (info / "METADATA").write_text(metadata)
        (info / "WHEEL").write_text(
            f"Wheel-Version: 1.0\nGenerator: hyperframes {arguments.version}\n"
            f"Root-Is-Purelib: false\nTag: {arguments.tag}\n"
        )
        for path in info.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        record = info / "RECORD"
        record.write_text(_record(folder, record.relative_to(folder).as_posix()))
        record.chmod(0o644)
        _write_wheel(folder, arguments.output)


if __name__ == "__main__":
    main()
