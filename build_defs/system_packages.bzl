"""Debian's list of installed packages as one file, for targets that copy from the system."""

_STATUS = "/var/lib/dpkg/status"

def _system_packages_impl(repository_ctx):
    repository_ctx.file("BUILD", 'exports_files(["status"], visibility = ["//visibility:public"])\n')
    if repository_ctx.path(_STATUS).exists:
        repository_ctx.symlink(_STATUS, "status")
    else:
        repository_ctx.file("status", "")

system_packages = repository_rule(
    implementation = _system_packages_impl,
    local = True,
)
