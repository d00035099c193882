// A plugin that another build made: whoever asks it for its backend has not looked.
#include <cstdlib>

#ifdef KVERN_TEST_BUILD
extern "C" const char* KvernGpuBuild() { return KVERN_TEST_BUILD; }
#endif
extern "C" const void* KvernGpuBackend() { std::abort(); }
