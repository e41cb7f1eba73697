"""Makes the release archive: programs, library, Python package, monitoring, and a manifest.

    python3 -m shipping.archive --version 0.1.0 --output X.tar.gz --copy FROM=TO ... FILE...

The same inputs give the same bytes: names are sorted, and times and owners are nobody's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tarfile
import tempfile
from pathlib import Path

from shipping import bundle, tree

_LIBRARIES = "lib"


def _write_manifest(folder: Path, arguments: argparse.Namespace, shipped: tree.Shipped) -> None:
    manifest = {
        "name": "hyperframes",
        "version": arguments.version,
        "platform": arguments.platform,
        "backends": ["host", "cuda"] if arguments.cuda else ["host"],
        "needs": shipped.system_versions,
        "libraries": [
            {
                "file": f"{_LIBRARIES}/{library.shipped_name}",
                "from": library.soname,
                "package": library.package,
                "version": library.version,
            }
            for library in shipped.libraries
        ],
        "sha256": {
            name: tree.sha256(path) for name, path in tree.files(folder) if not path.is_symlink()
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _write_archive(folder: Path, root: str, output: Path) -> None:
    with (
        output.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=9, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, path in tree.files(folder):
            info = archive.gettarinfo(path, f"{root}/{name}")
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mtime = 0
            info.mode = 0o777 if path.is_symlink() else path.stat().st_mode & 0o777
            if path.is_symlink():
                archive.addfile(info)
            else:
                with path.open("rb") as content:
                    archive.addfile(info, content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--platform", required=True)
    parser.add_argument("--cuda", action="store_true", help="the build has the CUDA backend")
    parser.add_argument("--output-root", default="", help="a prefix of generated files to ignore")
    parser.add_argument("--copy", action="append", type=tree.Rule.parse, default=[])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("inputs", nargs="+", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shipped = tree.fill(
            folder, arguments.inputs, arguments.copy, arguments.output_root, _LIBRARIES
        )
        # The C ABI's users look in lib, Python beside the package: one file, found either way.
        link = folder / "python/hyperframes/libhyperframes.so"
        link.symlink_to("../../lib/libhyperframes.so")
        bundle.ship_licenses(shipped.libraries, folder / "licenses")
        _write_manifest(folder, arguments, shipped)
        root = f"hyperframes-{arguments.version}-{arguments.platform}"
        _write_archive(folder, root, arguments.output)


if __name__ == "__main__":
    main()
