# The CUDA toolkit, and kernels compiled with its nvcc. Sets KVERN_CUDA_HOME to the toolkit, or to
# nothing when there is none: then everything but the CUDA backend is built.
#
# Kernels are compiled by plain nvcc calls, not by CMake's CUDA language: no program is linked by
# nvcc, and what ptxas says of registers and spills is kept beside each object for a test to read.

set(KVERN_CUDA "auto" CACHE STRING
  "The CUDA backend: auto (if there is a toolkit), require (fail if there is none) or off")
set_property(CACHE KVERN_CUDA PROPERTY STRINGS auto require off)
set(KVERN_CUDA_ARCHITECTURES 80 90)

# The same places as tools/setup --cuda looks at and installs to.
set(KVERN_CUDA_HOME "")
if(NOT KVERN_CUDA STREQUAL "off" AND NOT KVERN_SANITIZE)
  foreach(home "$ENV{CUDA_HOME}" /usr/local/cuda "${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu13")
    if(home AND EXISTS "${home}/bin/nvcc" AND EXISTS "${home}/include/cublasLt.h")
      set(KVERN_CUDA_HOME "${home}")
      break()
    endif()
  endforeach()
  if(NOT KVERN_CUDA_HOME AND KVERN_CUDA STREQUAL "require")
    message(FATAL_ERROR "KVERN_CUDA=require, but no toolkit (bin/nvcc and include/cublasLt.h) is in "
      "CUDA_HOME, /usr/local/cuda or build/cuda; tools/setup --cuda installs one")
  endif()
endif()

if(KVERN_CUDA_HOME)
  set(kvern_cuda_places "${KVERN_CUDA_HOME}" "${KVERN_CUDA_HOME}/../nccl")
  find_path(KVERN_NCCL_INCLUDE nccl.h PATHS ${kvern_cuda_places} PATH_SUFFIXES include
    NO_DEFAULT_PATH REQUIRED)
  # By their full names: the wheels of PyPI have no others.
  foreach(library cudart_static:libcudart_static.a cublasLt:libcublasLt.so.13 nccl:libnccl.so.2)
    string(REPLACE ":" ";" library "${library}")
    list(GET library 0 name)
    list(GET library 1 file)
    find_library(KVERN_${name}_LIBRARY NAMES ${file} PATHS ${kvern_cuda_places}
      PATH_SUFFIXES lib64 lib NO_DEFAULT_PATH REQUIRED)
  endforeach()
  get_filename_component(kvern_cublas_path "${KVERN_cublasLt_LIBRARY}" DIRECTORY)
  get_filename_component(kvern_nccl_path "${KVERN_nccl_LIBRARY}" DIRECTORY)
  set(KVERN_CUDA_LIBRARY_PATH "${kvern_cublas_path}:${kvern_nccl_path}")
  message(STATUS "CUDA toolkit: ${KVERN_CUDA_HOME}")

  add_library(kvern_cuda_toolkit INTERFACE)
  target_include_directories(kvern_cuda_toolkit SYSTEM INTERFACE
    "${KVERN_CUDA_HOME}/include" "${KVERN_NCCL_INCLUDE}")
  target_link_libraries(kvern_cuda_toolkit INTERFACE ${KVERN_cublasLt_LIBRARY}
    ${KVERN_nccl_LIBRARY} ${KVERN_cudart_static_LIBRARY} Threads::Threads ${CMAKE_DL_LIBS} rt)
endif()

# kvern_cuda_objects(VARIABLE SRCS ...): sets VARIABLE to the objects that nvcc makes of the sources:
# of a .cu with the machine code for all architectures and PTX for later ones. A .cc starts no kernel
# of its own, so one pass is enough for it. What ptxas said is in OBJECT.ptxas.
function(kvern_cuda_objects variable)
  cmake_parse_arguments(arg "" "" "SRCS" ${ARGN})
  set(objects)
  # What is newer than all of them translates the newest's PTX when it first loads it.
  list(GET KVERN_CUDA_ARCHITECTURES -1 newest)
  set(all -gencode arch=compute_${newest},code=compute_${newest})
  foreach(architecture ${KVERN_CUDA_ARCHITECTURES})
    list(APPEND all -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET KVERN_CUDA_ARCHITECTURES 0 oldest)
  file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
  foreach(source ${arg_SRCS})
    set(gencode ${all})
    if(source MATCHES "\\.cc$")
      set(gencode -gencode arch=compute_${oldest},code=compute_${oldest})
    endif()
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${source}.cuda.o")
    add_custom_command(OUTPUT "${object}"
      COMMAND "${PROJECT_SOURCE_DIR}/cmake/nvcc_logged" "${object}.ptxas"
        "${KVERN_CUDA_HOME}/bin/nvcc" -x cu -std=c++20 -O3 ${gencode} -Xptxas -v
        -ccbin "${CMAKE_CXX_COMPILER}" "-I${PROJECT_SOURCE_DIR}" -Xcompiler -fPIC,-g1
        --Werror all-warnings -MD -MF "${object}.d" -c "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
        -o "${object}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}" "${PROJECT_SOURCE_DIR}/cmake/nvcc_logged"
      DEPFILE "${object}.d"
      COMMENT "nvcc ${source}"
      VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()

# What tools/gpu_check takes along: programs that need a GPU to run, and so are no part of `all`.
add_custom_target(gpu_programs)

# kvern_link_archives(TARGET): TARGET has abseil within it, all of its archives as a whole, so that
# no order matters and nothing is registered twice. It must be a program: Debian's archives are not
# for shared libraries. Call it before what TARGET links otherwise.
function(kvern_link_archives target)
  get_target_property(abseil absl::strings LOCATION)
  get_filename_component(folder "${abseil}" DIRECTORY)
  file(GLOB archives "${folder}/libabsl_*.a")
  list(JOIN archives "," archives)
  if(archives)
    target_link_libraries(${target} PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,${archives}>")
  endif()
  # The libraries of the same code, which come with the targets below, are then not needed.
  target_link_options(${target} PRIVATE -Wl,--as-needed)
endfunction()

# kvern_gpu_program(NAME SRCS ... [DEPS ...]): a program for a machine with a GPU, all of it compiled
# by nvcc. Without a toolkit there is none.
function(kvern_gpu_program name)
  if(NOT KVERN_CUDA_HOME)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  kvern_cuda_objects(objects SRCS ${arg_SRCS})
  add_executable(${name} EXCLUDE_FROM_ALL ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  # What it does not call it shall start without.
  kvern_link_archives(${name})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} kvern_cuda_toolkit)
  # Whoever carries it elsewhere puts the other libraries that it needs beside it.
  target_link_options(${name} PRIVATE "-Wl,-rpath,$ORIGIN/lib:${KVERN_CUDA_LIBRARY_PATH}")
  add_dependencies(gpu_programs ${name})
endfunction()
