// What ONNX Runtime's ROCm and MIGraphX providers, and MIGraphX itself, ask for beyond libMIOpen: more of the HIP
// runtime, and the functions that they import of six more libraries. One source for
//
//   libamdhip64.so.7   launches by host function, captured graphs, memory by address
//   libhipblas.so.3, libhipfft.so.0, librocm_smi64.so.1, libroctracer64.so.4    for the ROCm provider
//   libhiprtc.so.6, libhipblaslt.so.1    for MIGraphX; a compilation is a line "compile PID PROGRAM" in the log

#include "device.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Configuration {
    dim3 grid, block;
    size_t shared;
    hipStream_t stream;
};
thread_local std::vector<Configuration> configurations;  // between <<<...>>> and the launch that it is for

std::mutex guard;
std::map<const void*, std::string>& kernels() {  // by the host function that stands for them
    static std::map<const void*, std::string> all;
    return all;
}

template <typename Handle>
hipError_t made(Handle* handle) {
    return *handle = reinterpret_cast<Handle>(new char), hipSuccess;
}
template <typename Handle>
hipError_t gone(Handle handle) {
    return delete reinterpret_cast<char*>(handle), hipSuccess;
}

const size_t code_bytes = 256;  // of a program that hiprtc has compiled

}  // namespace

extern "C" {

// ---- HIP: the device and its errors ----
hipError_t hipRuntimeGetVersion(int* version) { return *version = HIP_VERSION, hipSuccess; }
hipError_t hipDeviceSynchronize() { return hipSuccess; }
hipError_t hipGetLastError() { return hipSuccess; }
hipError_t hipPeekAtLastError() { return hipSuccess; }
const char* hipGetErrorName(hipError_t error) { return error == hipErrorNoDevice ? "hipErrorNoDevice" : "hipError"; }
int hipGetStreamDeviceId(hipStream_t) { return 0; }

// ---- HIP: memory ----
hipError_t hipHostFree(void* pointer) { return hipFree(pointer); }
hipError_t hipHostRegister(void*, size_t, unsigned) { return hipSuccess; }
hipError_t hipHostUnregister(void*) { return hipSuccess; }
hipError_t hipHostGetDevicePointer(void** device, void* host, unsigned) { return *device = host, hipSuccess; }
hipError_t hipMemset(void* to, int value, size_t bytes) { return std::memset(to, value, bytes), hipSuccess; }
hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind, hipStream_t) {
    return std::memcpy(to, from, bytes), hipSuccess;
}
hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                            hipMemcpyKind, hipStream_t) {
    for (size_t row = 0; row < height; ++row)
        std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    return hipSuccess;
}
hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* pointer) {
    const Memory where = memory_at(pointer);
    if (where == Memory::unknown) return hipErrorInvalidValue;
    std::memset(attributes, 0, sizeof *attributes);
    attributes->type = where == Memory::host ? hipMemoryTypeHost : hipMemoryTypeDevice;
    attributes->devicePointer = const_cast<void*>(pointer);
    return hipSuccess;
}

// ---- HIP: streams, and graphs, which are empty: what is captured was run at once ----
hipError_t hipStreamQuery(hipStream_t) { return hipSuccess; }
hipError_t hipLaunchHostFunc(hipStream_t, hipHostFn_t function, void* data) { return function(data), hipSuccess; }
hipError_t hipStreamBeginCapture(hipStream_t, hipStreamCaptureMode) { return hipSuccess; }
hipError_t hipStreamEndCapture(hipStream_t, hipGraph_t* graph) { return made(graph); }
hipError_t hipGraphInstantiate(hipGraphExec_t* replay, hipGraph_t, hipGraphNode_t*, char*, size_t) {
    return made(replay);
}
hipError_t hipGraphLaunch(hipGraphExec_t, hipStream_t) { return launch("graph", 0), hipSuccess; }
hipError_t hipGraphExecDestroy(hipGraphExec_t replay) { return gone(replay); }
hipError_t hipGraphDestroy(hipGraph_t graph) { return gone(graph); }

// ---- HIP: kernels that are compiled into a library, and launched by the host function that stands for them ----
void** __hipRegisterFatBinary(const void*) {
    static void* binary;
    return &binary;
}
void __hipUnregisterFatBinary(void**) {}
void __hipRegisterVar(void**, void*, char*, char*, int, size_t, int, int) {}
void __hipRegisterFunction(void**, const void* host, char*, const char* name, unsigned, void*, void*, void*, void*,
                           int*) {
    const std::lock_guard<std::mutex> lock(guard);
    kernels().emplace(host, name);
}
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared, hipStream_t stream) {
    return configurations.push_back({grid, block, shared, stream}), hipSuccess;
}
hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, hipStream_t* stream) {
    if (configurations.empty()) return hipErrorInvalidValue;
    const Configuration last = configurations.back();
    configurations.pop_back();
    *grid = last.grid, *block = last.block, *shared = last.shared, *stream = last.stream;
    return hipSuccess;
}
hipError_t hipLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t, hipStream_t) {
    std::string name = "unregistered";
    {
        const std::lock_guard<std::mutex> lock(guard);
        const auto found = kernels().find(function);
        if (found != kernels().end()) name = found->second;
    }
    return launch(name, double(grid.x) * grid.y * grid.z * block.x * block.y * block.z), hipSuccess;
}

// ---- rocBLAS: what libMIOpen does not import. Every gemm begins with handle, transA, transB, m, n, k ----
int rocblas_get_stream(void*, void** stream) { return *stream = nullptr, 0; }
int rocblas_get_version_string(char* text, size_t size) { return std::strncpy(text, "0.0.0.stand-in", size), 0; }
int rocblas_gemm_ex_get_solutions() { return 2; }  // rocblas_status_not_implemented
int rocblas_gemm_strided_batched_ex_get_solutions() { return 2; }

// ---- hipBLAS ----
int hipblasCreate(void** handle) { return *handle = new char, 0; }
int hipblasDestroy(void* handle) { return delete static_cast<char*>(handle), 0; }
int hipblasSetStream(void*, void*) { return 0; }

#define GEMM(name) \
    int name(void*, int, int, int m, int n, int k) { return launch(#name, double(m) * n * k / 64), 0; }
#define GEAM(name) \
    int name(void*, int, int, int m, int n) { return launch(#name, double(m) * n), 0; }
#define COPY(name) \
    int name(void*, int n) { return launch(#name, n), 0; }
GEMM(rocblas_gemm_batched_ex)
GEMM(rocblas_dgemm)
GEMM(rocblas_dgemm_batched)
GEMM(rocblas_dgemm_strided_batched)
GEMM(hipblasGemmEx)
GEMM(hipblasGemmStridedBatchedEx)
GEAM(hipblasSgeam)
GEAM(hipblasDgeam)
COPY(hipblasScopy)
COPY(hipblasDcopy)

// ---- hipBLASLt: objects without content; one algorithm, of zeros, for every question ----
#define OBJECT(name) \
    int name##Create(void** object) { return *object = new char, 0; } \
    int name##Destroy(void* object) { return delete static_cast<char*>(object), 0; }
OBJECT(hipblasLt)
OBJECT(hipblasLtMatmulDesc)
OBJECT(hipblasLtMatmulPreference)
OBJECT(hipblasLtMatrixLayout)
int hipblasLtMatmulDescSetAttribute() { return 0; }
int hipblasLtMatmulPreferenceSetAttribute() { return 0; }
int hipblasLtMatrixLayoutSetAttribute() { return 0; }
int hipblasLtMatmul() { return launch("hipblasLtMatmul", 0), 0; }
int hipblasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int wanted, void* results,
                                    int* found) {
    if (wanted > 0) std::memset(results, 0, 40);  // algorithm, workspace, state: the head of the first result
    return *found = wanted > 0, 0;
}
// hipblaslt_ext, by its C++ names: no algorithm is offered, and every one that is asked about would do
int cxx_all_algorithms() __asm__(
    "_ZN13hipblaslt_ext11getAllAlgosEPvNS_8GemmTypeE18hipblasOperation_tS2_11hipDataTypeS3_S3_S3_20hipblasComputeType_t"
    "RSt6vectorI33_hipblasLtMatmulHeuristicResult_tSaIS6_EE");
int cxx_algorithms_of_indices() __asm__(
    "_ZN13hipblaslt_ext17getAlgosFromIndexEPvRSt6vectorIiSaIiEERS1_I33_hipblasLtMatmulHeuristicResult_tSaIS5_EE");
int cxx_index_of_algorithm() __asm__("_ZN13hipblaslt_ext16getIndexFromAlgoER22_hipblasLtMatmulAlgo_t");
int cxx_is_supported() __asm__(
    "_ZN13hipblaslt_ext21matmulIsAlgoSupportedEPvP27hipblasLtMatmulDescOpaque_tPKvP29hipblasLtMatrixLayoutOpaque_tS6_"
    "S4_S6_S6_R22_hipblasLtMatmulAlgo_tRm");
int cxx_all_algorithms() { return 0; }
int cxx_algorithms_of_indices() { return 0; }
int cxx_index_of_algorithm() { return 0; }
int cxx_is_supported() { return 0; }

// ---- HIP's launch, by its C++ name ----
hipError_t cxx_ext_launch(hipFunction_t function, uint32_t x, uint32_t y, uint32_t z, uint32_t bx, uint32_t by,
                          uint32_t bz, size_t shared, hipStream_t stream, void** arguments, void** extra,
                          hipEvent_t start, hipEvent_t stop, uint32_t flags)
    __asm__(
        "_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j");
hipError_t c_ext_launch(hipFunction_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, size_t, hipStream_t,
                        void**, void**, hipEvent_t, hipEvent_t, uint32_t) __asm__("hipExtModuleLaunchKernel");
hipError_t cxx_ext_launch(hipFunction_t function, uint32_t x, uint32_t y, uint32_t z, uint32_t bx, uint32_t by,
                          uint32_t bz, size_t shared, hipStream_t stream, void** arguments, void** extra,
                          hipEvent_t start, hipEvent_t stop, uint32_t flags) {
    return c_ext_launch(function, x, y, z, bx, by, bz, shared, stream, arguments, extra, start, stop, flags);
}

// ---- hipRTC: every program compiles to a few bytes that begin with its name ----
int hiprtcCreateProgram(void** program, const char*, const char* name, int, const char**, const char**) {
    char* code = static_cast<char*>(std::calloc(1, code_bytes));
    std::strncpy(code, name ? name : "unnamed", code_bytes - 1);
    return *program = code, 0;
}
int hiprtcCompileProgram(void* program, int, const char**) {
    return note("compile", static_cast<const char*>(program)), 0;
}
int hiprtcDestroyProgram(void** program) { return std::free(*program), *program = nullptr, 0; }
int hiprtcGetCodeSize(void*, size_t* bytes) { return *bytes = code_bytes, 0; }
int hiprtcGetCode(void* program, char* code) { return std::memcpy(code, program, code_bytes), 0; }
int hiprtcGetProgramLogSize(void*, size_t* bytes) { return *bytes = 0, 0; }
int hiprtcGetProgramLog(void*, char*) { return 0; }
const char* hiprtcGetErrorString(int) { return "an error of the stand-in compiler"; }

// ---- hipFFT ----
int hipfftCreate(void** plan) { return *plan = new char, 0; }
int hipfftSetStream(void*, void*) { return 0; }
int hipfftXtMakePlanMany() { return 0; }
int hipfftXtExec() { return launch("hipfftXtExec", 0), 0; }

// ---- ROCm SMI ----
int rsmi_init(uint64_t) { return 0; }
int rsmi_shut_down() { return 0; }
int rsmi_dev_memory_total_get(uint32_t, int, uint64_t* bytes) { return *bytes = uint64_t(64) << 30, 0; }
int rsmi_dev_memory_usage_get(uint32_t, int, uint64_t* bytes) { return *bytes = 0, 0; }

}  // extern "C"
