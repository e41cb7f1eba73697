"""C++ targets of this project: one place for the warnings that our own code must pass."""

HF_COPTS = ["-Wall", "-Wextra", "-Werror"] + select({
    "//build_defs:clang": ["-Wthread-safety", "-Wthread-safety-beta"],
    "//conditions:default": [],
})

# For what is shipped: its libraries are in ../lib (programs), ../lib or ../../lib (the archive's
# library, as C and as Python find it) or lib (the wheel's). RPATH rather than RUNPATH, because it
# carries on to the libraries' own needs and comes before what somebody's environment says.
SHIPPED_LINKOPTS = [
    "-Wl,-rpath,'$$ORIGIN:$$ORIGIN/lib:$$ORIGIN/../lib:$$ORIGIN/../../lib'",
    "-Wl,--disable-new-dtags",
]

def hf_cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, linkstatic = True, copts = HF_COPTS + copts, **kwargs)

def hf_cc_binary(name, copts = [], **kwargs):
    native.cc_binary(name = name, copts = HF_COPTS + copts, **kwargs)

def hf_cc_test(name, copts = [], deps = [], size = "small", **kwargs):
    native.cc_test(
        name = name,
        copts = HF_COPTS + copts,
        deps = deps + ["//third_party:gtest_main"],
        size = size,
        linkstatic = True,
        **kwargs
    )
