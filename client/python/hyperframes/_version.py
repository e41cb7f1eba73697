"""The release, written here and nowhere else.

Read as Python by the package and, through the link build_defs/version.bzl, as Starlark by Bazel,
for the programs, the library and the names of what is shipped: only what both languages know may
stand here.
"""

VERSION = "0.1.0"
