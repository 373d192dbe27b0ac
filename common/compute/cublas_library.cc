// Functions of cuBLAS that this project calls, as cuBLAS's header declares
// them. Each function passes its call on to the library. The first call loads
// the library. Linking it would load it when any program starts, although it
// has 600 MB, is not on every machine with a GPU, and only products of factors
// need it. Without the library, cublasCreate fails, and cublasGetStatusString
// says why.

#include <cublas_v2.h>
#include <dlfcn.h>

#include <string>

#define NEREUS_TEXT_(text) #text
#define NEREUS_TEXT(text) NEREUS_TEXT_(text)
// Hides a function from other libraries of the process: their calls of cuBLAS
// must go to cuBLAS and not to this file.
#define NEREUS_HIDDEN extern "C" __attribute__((visibility("hidden")))

namespace {

// File of the library, with the major version of the headers that this file is
// compiled with. If the process has already loaded this library, as PyTorch
// does, dlopen returns the loaded one.
constexpr char kLibrary[] = "libcublas.so." NEREUS_TEXT(CUBLAS_VER_MAJOR);

// The library's functions, looked up once per process.
struct Library {
  Library() {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    Find(library, "cublasCreate_v2", create);
    Find(library, "cublasDestroy_v2", destroy);
    Find(library, "cublasGetVersion_v2", get_version);
    Find(library, "cublasSetStream_v2", set_stream);
    Find(library, "cublasSetWorkspace_v2", set_workspace);
    Find(library, "cublasGemmEx", gemm);
    Find(library, "cublasGetStatusName", status_name);
    Find(library, "cublasGetStatusString", status_string);
  }

  // Sets `function` to the library's function `name`. If the library is null or
  // lacks the function, sets `problem`. Does nothing after the first problem.
  template <typename Function>
  void Find(void* library, const char* name, Function& function) {
    if (!problem.empty()) return;
    if (library != nullptr) {
      function = reinterpret_cast<Function>(dlsym(library, name));
    }
    if (function != nullptr) return;
    const char* const why = dlerror();
    problem = why == nullptr ? kLibrary : why;
    problem +=
        "; install cuBLAS (in the CUDA Toolkit, or Python's package "
        "nvidia-cublas), and put its folder into LD_LIBRARY_PATH";
  }

  std::string problem;  // Empty: all functions were found.
  cublasStatus_t (*create)(cublasHandle_t*) = nullptr;
  cublasStatus_t (*destroy)(cublasHandle_t) = nullptr;
  cublasStatus_t (*get_version)(cublasHandle_t, int*) = nullptr;
  cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t) = nullptr;
  cublasStatus_t (*set_workspace)(cublasHandle_t, void*, size_t) = nullptr;
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t,
                         int, int, int, const void*, const void*, cudaDataType,
                         int, const void*, cudaDataType, int, const void*,
                         void*, cudaDataType, int, cublasComputeType_t,
                         cublasGemmAlgo_t) = nullptr;
  const char* (*status_name)(cublasStatus_t) = nullptr;
  const char* (*status_string)(cublasStatus_t) = nullptr;
};

// Returns the library, which the first call loads.
const Library& TheLibrary() {
  static const Library& library = *new Library();
  return library;
}

}  // namespace

// Fails if there is a problem. So the functions that take a handle need not
// look at `problem`: only this function makes handles.
NEREUS_HIDDEN cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  const Library& library = TheLibrary();
  return library.problem.empty() ? library.create(handle)
                                 : CUBLAS_STATUS_NOT_INITIALIZED;
}
NEREUS_HIDDEN cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  return TheLibrary().destroy(handle);
}
NEREUS_HIDDEN cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle,
                                                 int* version) {
  return TheLibrary().get_version(handle, version);
}
NEREUS_HIDDEN cublasStatus_t cublasSetStream_v2(cublasHandle_t handle,
                                                cudaStream_t stream) {
  return TheLibrary().set_stream(handle, stream);
}
NEREUS_HIDDEN cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle,
                                                   void* workspace,
                                                   size_t bytes) {
  return TheLibrary().set_workspace(handle, workspace, bytes);
}
NEREUS_HIDDEN cublasStatus_t cublasGemmEx(
    cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
    int m, int n, int k, const void* alpha, const void* a, cudaDataType a_type,
    int lda, const void* b, cudaDataType b_type, int ldb, const void* beta,
    void* c, cudaDataType c_type, int ldc, cublasComputeType_t compute,
    cublasGemmAlgo_t algorithm) {
  return TheLibrary().gemm(handle, op_a, op_b, m, n, k, alpha, a, a_type, lda,
                           b, b_type, ldb, beta, c, c_type, ldc, compute,
                           algorithm);
}
NEREUS_HIDDEN const char* cublasGetStatusName(cublasStatus_t status) {
  const Library& library = TheLibrary();
  return library.problem.empty() ? library.status_name(status)
                                 : "CUBLAS_STATUS_NOT_INITIALIZED";
}
NEREUS_HIDDEN const char* cublasGetStatusString(cublasStatus_t status) {
  const Library& library = TheLibrary();
  return library.problem.empty() ? library.status_string(status)
                                 : library.problem.c_str();
}
