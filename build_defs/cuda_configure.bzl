"""Finds the CUDA toolkit, or makes an empty repository so that builds without one still pass."""

_FOUND = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob([
        "include/**/*.h",
        "include/**/*.hpp",
        "include/**/*.cuh",
        "include/nv/**",
        "include/cccl/nv/**",
    ]),
    includes = ["include"],
)
"""

_ABSENT = """
package(default_visibility = ["//visibility:public"])

cc_library(name = "headers")
"""

def _cuda_configure_impl(repository_ctx):
    root = repository_ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    include = repository_ctx.path(root + "/include")
    found = include.exists
    if found:
        repository_ctx.symlink(include, "include")
    repository_ctx.file("BUILD", _FOUND if found else _ABSENT)
    repository_ctx.file("defs.bzl", "CUDA_FOUND = %s\nCUDA_ROOT = %r\n" % (found, root))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
