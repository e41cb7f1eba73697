"""C++ targets of this project: one place for the warnings that our own code must pass."""

HF_COPTS = ["-Wall", "-Wextra", "-Werror"] + select({
    "//build_defs:clang": ["-Wthread-safety", "-Wthread-safety-beta"],
    "//conditions:default": [],
})

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
