// <metal_stdlib> for clang++ 17 or later on x86-64: half and bfloat are the compiler's own types, vectors its extended
// vectors. Address spaces are erased. No header of C or C++ is included, so a kernel that leans on one does not compile.
#pragma once

#include "types.hpp"

#include "runtime.hpp"

#include "math.hpp"

#include "simdgroup.hpp"

#include "arguments.hpp"
