// Before main: the fake driver and NVML are loaded under the real ones' names, so that whoever
// opens those later finds them. A test that is to run on them links this and has them as data.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

namespace {

const bool loaded = [] {
  setenv("HYPERFRAMES_FAKE_GPUS", "2,contexts", /*overwrite=*/0);
  setenv("HYPERFRAMES_FAKE_MACHINE", std::to_string(getpid()).c_str(), /*overwrite=*/0);
  char here[4096] = "";
  if (getcwd(here, sizeof(here)) == nullptr) abort();
  const std::string folder = std::string(here) + "/agent/device/";
  setenv("LD_LIBRARY_PATH", (folder + "cuda/fake:" + folder + "nccl/fake").c_str(),
         /*overwrite=*/1);
  for (const char* const name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    const std::string path = std::string("agent/device/cuda/fake/") + name;
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) continue;
    fprintf(stderr, "%s\n", dlerror());
    abort();
  }
  return true;
}();

}  // namespace
