// Blocks of 64 that no file has, whose kinds are numbered after those of GGUF: scales of f32, as many minimums where the
// kind has them, and codes, of which those of four bits share bytes, the first in the lower half. They have whole words.

#define NF4 14
#define FP4 15
#define NF4_BF16 16
#define NF4_F16 17
#define FP4_BF16 18
#define FP4_F16 19
#define NVFP4 20
#define IQ2 21
#define FP8 22
#define INT4 23
#define INT8 24
#define FP8_E5M2 25
#define INT4_32 26
#define INT8_32 27
#define INT4_16 28
#define INT8_16 29

#define OF_16 (KIND == NVFP4 || KIND == IQ2 || KIND == INT4_16 || KIND == INT8_16)
#define SCALES (OF_16 ? 4 : KIND == INT4_32 || KIND == INT8_32 ? 2 : 1)
#define BYTES_ABOVE_MINIMUM (KIND == INT8 || KIND == INT8_32 || KIND == INT8_16)
#define ABOVE_MINIMUM (KIND == INT4 || KIND == INT4_32 || KIND == INT4_16 || BYTES_ABOVE_MINIMUM)
#define EIGHT_BITS (KIND == FP8 || KIND == FP8_E5M2 || BYTES_ABOVE_MINIMUM)
#define FLOATS (KIND == FP8 || KIND == FP8_E5M2)
#define HEADER (4 * SCALES * (ABOVE_MINIMUM ? 2 : 1))

#define NF4_LEVELS {-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0, \
                    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0}
#define FP4_LEVELS {0.0, 0.0052083335, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25, \
                    0.0, -0.0052083335, -0.6666667, -1.0, -0.33333334, -0.5, -0.16666667, -0.25}
#define E2M1_LEVELS {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0}
#define IQ2_LEVELS {8.0, 25.0, 43.0, 0.0, 0.0, 0.0, 0.0, 0.0, -8.0, -25.0, -43.0, 0.0, 0.0, 0.0, 0.0, 0.0}

// Whether codes are numbers of levels in a table.
#if KIND < NF4 || FLOATS || ABOVE_MINIMUM
#define LOOKED_UP 0
#else
#define LOOKED_UP 1
__constant__ float FOUR_BITS[16] =
#if KIND == NF4 || KIND == NF4_BF16 || KIND == NF4_F16
    NF4_LEVELS;
#elif KIND == FP4 || KIND == FP4_BF16 || KIND == FP4_F16
    FP4_LEVELS;
#elif KIND == NVFP4
    E2M1_LEVELS;
#else
    IQ2_LEVELS;
#endif
#endif
