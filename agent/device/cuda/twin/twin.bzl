"""What a test takes, beside on_fake_gpus, to run on one fake GPU that is seen as two."""

TWIN_DATA = [
    "//agent/device/cuda/fake",
    "//agent/device/cuda/twin",
]

TWIN_ENVIRONMENT = {
    "HYPERFRAMES_CUDA_LIBRARY": "agent/device/cuda/twin/libtwin-cuda.so",
    "HYPERFRAMES_FAKE_GPUS": "1,contexts",
    "HYPERFRAMES_NVML_LIBRARY": "agent/device/cuda/twin/libtwin-nvml.so",
}
