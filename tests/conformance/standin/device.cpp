// A stand-in for an AMD GPU, for libMIOpen.so.1: one shared object with three faces. libraries.cpp gives it more of
// them, for ONNX Runtime's providers.
//
//   libamdhip64.so.6   the HIP runtime functions that libMIOpen imports: one device whose memory is host memory
//   librocblas.so.4    the rocBLAS functions that it imports
//   preloaded          popen/pclose, so that the compiler that libMIOpen runs for each kernel need not be installed
//
// Kernels compute nothing: a launch advances a simulated clock by a time that depends on the kernel's name and the size
// of its grid only, so that results of a search are the same in every process. What this shows is what libMIOpen writes,
// reads, locks and asks for. What it cannot show is how fast anything is, or that a result is right.
//
// STANDIN_ARCH   the device's name as HIP gives it (gfx90a:sramecc+:xnack-); STANDIN_CU its compute units (104)
// STANDIN_DEVICES how many devices there are: 1, or 0 for a machine without a GPU
// STANDIN_LOG    a file that gets one line per compilation ("compile PID OUTPUT") and per launch ("launch PID KERNEL")

#include "device.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

std::mutex guard;                      // over all that follows
double clock_ms = 0;                   // the simulated device clock
std::map<const void*, size_t> blocks;  // live memory, by address
std::set<const void*> pinned;          // those of the blocks that are the host's

const char* text(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value && *value ? value : otherwise;
}

// FNV-1a: std::hash may differ between builds of the C++ library.
uint32_t hash(const std::string& name) {
    uint32_t value = 2166136261u;
    for (unsigned char c : name) value = (value ^ c) * 16777619u;
    return value;
}

// Milliseconds of a launch: a fixed start, and work at a speed that belongs to the kernel's name.
double milliseconds(const std::string& kernel, double work) {
    return 0.005 + work * 1e-9 * (1 + hash(kernel) % 97) + hash(kernel) % 89 * 1e-4;
}

double* time_of(hipEvent_t event) { return reinterpret_cast<double*>(event); }
const size_t memory = size_t(64) << 30;

}  // namespace

int number(const char* name, int otherwise) { return std::atoi(text(name, std::to_string(otherwise).c_str())); }

// One write per line: lines of several processes never mix.
void note(const std::string& what, const std::string& detail) {
    const char* path = text("STANDIN_LOG", nullptr);
    if (!path) return;
    const std::string line = what + " " + std::to_string(getpid()) + " " + detail + "\n";
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file < 0 || write(file, line.data(), line.size()) != ssize_t(line.size())) std::abort();
    close(file);
}

// Advances the clock over one launch; the events, where given, get its start and end.
void launch(const std::string& kernel, double work, double* start, double* stop) {
    const std::lock_guard<std::mutex> lock(guard);
    if (start) *start = clock_ms;
    clock_ms += milliseconds(kernel, work);
    if (stop) *stop = clock_ms;
    note("launch", kernel);
}

Memory memory_at(const void* pointer) {
    const std::lock_guard<std::mutex> lock(guard);
    auto block = blocks.upper_bound(pointer);
    if (block == blocks.begin()) return Memory::unknown;
    --block;
    if (static_cast<const char*>(pointer) >= static_cast<const char*>(block->first) + block->second)
        return Memory::unknown;
    return pinned.count(block->first) ? Memory::host : Memory::device;
}

extern "C" {

// ---- device ----
hipError_t hipInit(unsigned) { return hipSuccess; }
hipError_t hipGetDeviceCount(int* count) {
    *count = number("STANDIN_DEVICES", 1);
    return *count ? hipSuccess : hipErrorNoDevice;
}
hipError_t hipGetDevice(int* device) {
    int count;
    return *device = 0, hipGetDeviceCount(&count);
}
hipError_t hipSetDevice(int device) {
    int count;
    if (hipGetDeviceCount(&count) != hipSuccess) return hipErrorNoDevice;
    return device < count ? hipSuccess : hipErrorInvalidDevice;
}
hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t) { return *bytes = memory, hipSuccess; }
hipError_t hipMemGetInfo(size_t* available, size_t* total) { return *available = *total = memory, hipSuccess; }
const char* hipGetErrorString(hipError_t error) {
    return error == hipErrorNoDevice        ? "the stand-in has no device"
           : error == hipErrorInvalidDevice ? "the stand-in has no device of this number"
                                            : "an error of the stand-in device";
}

hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int) {
    std::memset(properties, 0, sizeof *properties);
    std::snprintf(properties->name, sizeof properties->name, "stand-in");
    std::snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "%s",
                  text("STANDIN_ARCH", "gfx90a:sramecc+:xnack-"));
    properties->multiProcessorCount = number("STANDIN_CU", 104);
    properties->totalGlobalMem = memory;
    properties->warpSize = 64;
    properties->sharedMemPerBlock = 65536;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->regsPerBlock = 65536;
    properties->clockRate = 1700000;  // kHz
    properties->major = 9;
    for (int axis = 0; axis < 3; ++axis) {
        properties->maxThreadsDim[axis] = 1024;
        properties->maxGridSize[axis] = axis ? 65535 : INT32_MAX;
    }
    return hipSuccess;
}

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int) {
    switch (attribute) {
        case hipDeviceAttributeMultiprocessorCount: *value = number("STANDIN_CU", 104); break;
        case hipDeviceAttributeMaxSharedMemoryPerBlock: *value = 65536; break;
        case hipDeviceAttributeMaxGridDimX: *value = INT32_MAX; break;
        case hipDeviceAttributeMaxThreadsPerBlock: *value = 1024; break;
        case hipDeviceAttributeWarpSize: *value = 64; break;
        case hipDeviceAttributeCooperativeLaunch: *value = 1; break;
        default: *value = 0;
    }
    return hipSuccess;
}

// ---- memory: calloc leaves big blocks as untouched zero pages, so gigabytes of it cost nothing ----
hipError_t hipMalloc(void** pointer, size_t bytes) {
    *pointer = std::calloc(1, bytes ? bytes : 1);
    if (!*pointer) return hipErrorOutOfMemory;
    const std::lock_guard<std::mutex> lock(guard);
    blocks[*pointer] = bytes;
    return hipSuccess;
}
hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned) {
    const hipError_t error = hipMalloc(pointer, bytes);
    const std::lock_guard<std::mutex> lock(guard);
    if (error == hipSuccess) pinned.insert(*pointer);
    return error;
}
hipError_t hipFree(void* pointer) {
    const std::lock_guard<std::mutex> lock(guard);
    if (pointer && !blocks.erase(pointer)) return hipErrorInvalidValue;
    pinned.erase(pointer);
    std::free(pointer);
    return hipSuccess;
}
hipError_t hipMemPtrGetInfo(void* pointer, size_t* bytes) {
    const std::lock_guard<std::mutex> lock(guard);
    const auto block = blocks.find(pointer);
    if (block == blocks.end()) return hipErrorInvalidValue;
    return *bytes = block->second, hipSuccess;
}
hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind) {
    return std::memcpy(to, from, bytes), hipSuccess;
}
hipError_t hipMemcpyWithStream(void* to, const void* from, size_t bytes, hipMemcpyKind, hipStream_t) {
    return std::memcpy(to, from, bytes), hipSuccess;
}
hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t) {
    return std::memset(to, value, bytes), hipSuccess;
}

// ---- streams and events: everything has happened by the time the call returns ----
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) {
    return *stream = reinterpret_cast<hipStream_t>(new char), hipSuccess;
}
hipError_t hipStreamDestroy(hipStream_t stream) { return delete reinterpret_cast<char*>(stream), hipSuccess; }
hipError_t hipStreamSynchronize(hipStream_t) { return hipSuccess; }
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned) { return hipSuccess; }
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) {
    return *event = reinterpret_cast<hipEvent_t>(new double(0)), hipSuccess;
}
hipError_t hipEventCreate(hipEvent_t* event) { return hipEventCreateWithFlags(event, 0); }
hipError_t hipEventDestroy(hipEvent_t event) { return delete time_of(event), hipSuccess; }
hipError_t hipEventSynchronize(hipEvent_t) { return hipSuccess; }
hipError_t hipEventRecord(hipEvent_t event, hipStream_t) {
    const std::lock_guard<std::mutex> lock(guard);
    return *time_of(event) = clock_ms, hipSuccess;
}
hipError_t hipEventElapsedTime(float* ms, hipEvent_t start, hipEvent_t stop) {
    return *ms = float(*time_of(stop) - *time_of(start)), hipSuccess;
}

// ---- modules and launches: a function is its name ----
hipError_t hipModuleLoad(hipModule_t* module, const char*) {
    return *module = reinterpret_cast<hipModule_t>(new char), hipSuccess;
}
hipError_t hipModuleLoadData(hipModule_t* module, const void*) { return hipModuleLoad(module, nullptr); }
hipError_t hipModuleUnload(hipModule_t module) { return delete reinterpret_cast<char*>(module), hipSuccess; }
hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t, const char* name) {
    static std::set<std::string> names;
    const std::lock_guard<std::mutex> lock(guard);
    *function = reinterpret_cast<hipFunction_t>(const_cast<std::string*>(&*names.insert(name).first));
    return hipSuccess;
}
hipError_t hipExtModuleLaunchKernel(hipFunction_t function, uint32_t x, uint32_t y, uint32_t z, uint32_t, uint32_t,
                                    uint32_t, size_t, hipStream_t, void**, void**, hipEvent_t start, hipEvent_t stop,
                                    uint32_t) {
    launch(*reinterpret_cast<std::string*>(function), double(x) * y * z, time_of(start), time_of(stop));
    return hipSuccess;
}
hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                            unsigned by, unsigned bz, unsigned, hipStream_t, void**) {
    launch(*reinterpret_cast<std::string*>(function), double(gx) * bx * gy * by * gz * bz);
    return hipSuccess;
}

// ---- rocBLAS: every gemm begins with handle, transA, transB, m, n, k ----
int rocblas_create_handle(void** handle) { return *handle = new char, 0; }
int rocblas_destroy_handle(void* handle) { return delete static_cast<char*>(handle), 0; }
int rocblas_set_stream(void*, void*) { return 0; }
int rocblas_set_atomics_mode(void*, int) { return 0; }
int rocblas_get_atomics_mode(void*, int* mode) { return *mode = 1, 0; }
int rocblas_sgemv(void*, int, int m, int n) { return launch("rocblas_sgemv", double(m) * n), 0; }
#define GEMM(name) \
    int name(void*, int, int, int m, int n, int k) { return launch(#name, double(m) * n * k / 64), 0; }
GEMM(rocblas_gemm_ex)
GEMM(rocblas_gemm_ex3)
GEMM(rocblas_gemm_strided_batched_ex)
GEMM(rocblas_gemm_strided_batched_ex3)

// ---- the compiler: popen("... clang ... -o FILE") writes a small file in its place; other commands really run ----
namespace {
std::set<FILE*> compilations;
}

FILE* popen(const char* command, const char* mode) {
    const std::string line(command);
    const size_t option = line.rfind(" -o ");
    if (line.find("clang") == std::string::npos || option == std::string::npos) {
        static const auto real = reinterpret_cast<FILE* (*)(const char*, const char*)>(dlsym(RTLD_NEXT, "popen"));
        return real(command, mode);
    }
    std::string path = line.substr(option + 4);
    path = path.substr(0, path.find_first_of(" \t\n"));
    if (path.size() > 1 && (path[0] == '"' || path[0] == '\'')) path = path.substr(1, path.size() - 2);
    FILE* object = std::fopen(path.c_str(), "wb");
    if (!object) return nullptr;
    std::fprintf(object, "object code of the stand-in compiler, from: %s\n", command);
    std::fclose(object);
    FILE* nothing = std::fopen("/dev/null", *mode == 'w' ? "w" : "r");
    const std::lock_guard<std::mutex> lock(guard);
    compilations.insert(nothing);
    note("compile", path);
    return nothing;
}

int pclose(FILE* file) {
    {
        const std::lock_guard<std::mutex> lock(guard);
        if (compilations.erase(file)) return std::fclose(file);
    }
    static const auto real = reinterpret_cast<int (*)(FILE*)>(dlsym(RTLD_NEXT, "pclose"));
    return real(file);
}

}  // extern "C"
