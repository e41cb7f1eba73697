"""hf_proto_library: protoc with the gRPC plugin, from Debian's packages, as one rule."""

HfProtoInfo = provider(fields = {"sources": "depset of .proto files, own and inherited"})

def _generate_impl(ctx):
    inherited = [dep[HfProtoInfo].sources for dep in ctx.attr.deps]
    sources = depset(ctx.files.srcs, transitive = inherited)
    outputs = []
    for src in ctx.files.srcs:
        stem = src.basename[:-len(".proto")]
        suffixes = [".pb.h", ".pb.cc"]
        if ctx.attr.grpc:
            suffixes += [".grpc.pb.h", ".grpc.pb.cc"]
        if ctx.attr.mocks:
            suffixes.append("_mock.grpc.pb.h")
        outputs += [ctx.actions.declare_file(stem + suffix) for suffix in suffixes]

    # Protos live under proto/, and are imported as "hyperframes/v1/x.proto".
    proto_root = "proto"
    out_root = ctx.bin_dir.path + "/" + proto_root
    arguments = ["-I" + proto_root, "-I/usr/include", "--cpp_out=" + out_root]
    if ctx.attr.grpc:
        grpc_out = ("generate_mock_code=true:" if ctx.attr.mocks else "") + out_root
        arguments += [
            "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin",
            "--grpc_out=" + grpc_out,
        ]
    ctx.actions.run(
        executable = "/usr/bin/protoc",
        arguments = arguments + [src.path for src in ctx.files.srcs],
        inputs = sources,
        outputs = outputs,
        mnemonic = "Protoc",
        progress_message = "Generating C++ from %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset(outputs)),
        OutputGroupInfo(
            headers = depset([f for f in outputs if f.extension == "h"]),
            code = depset([f for f in outputs if f.extension == "cc"]),
        ),
        HfProtoInfo(sources = sources),
    ]

_generate = rule(
    implementation = _generate_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".proto"]),
        "deps": attr.label_list(providers = [HfProtoInfo]),
        "grpc": attr.bool(default = False),
        "mocks": attr.bool(default = False),
    },
)

def hf_proto_library(name, srcs, deps = [], grpc = False, mocks = False, visibility = None):
    """C++ messages (and, with grpc, service stubs) of .proto files below //proto.

    Args:
      name: the cc_library to depend on.
      srcs: .proto files of this package.
      deps: other hf_proto_library targets that the sources import.
      grpc: also generate service stubs.
      mocks: also generate gMock stubs (needs grpc).
      visibility: as everywhere.
    """
    generated = name + "_generated"
    _generate(
        name = generated,
        srcs = srcs,
        deps = [dep + "_generated" for dep in deps],
        grpc = grpc,
        mocks = mocks,
        visibility = visibility,
    )
    native.filegroup(name = name + "_headers", srcs = [generated], output_group = "headers")
    native.filegroup(name = name + "_code", srcs = [generated], output_group = "code")
    native.cc_library(
        name = name,
        srcs = [name + "_code"],
        hdrs = [name + "_headers"],
        strip_include_prefix = "/proto",
        deps = deps + (["//third_party:grpcpp"] if grpc else ["//third_party:protobuf"]),
        copts = ["-w"],
        visibility = visibility,
    )
