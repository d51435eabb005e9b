// The three storage types, encoded from and decoded to f64 without any code of the shim.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

enum class Format { F32, F16, BF16 };

constexpr Format ALL_FORMATS[] = {Format::F32, Format::F16, Format::BF16};

struct FormatTraits {
    const char *suffix;
    int bytes;
    int mantissa_bits;
    int minimum_exponent;  // of the smallest normal number
    double maximum;
};

inline const FormatTraits &traits(Format format) {
    static const FormatTraits all[] = {
        {"f32", 4, 23, -126, std::ldexp(2.0 - std::ldexp(1.0, -23), 127)},
        {"f16", 2, 10, -14, 65504.0},
        {"bf16", 2, 7, -126, std::ldexp(2.0 - std::ldexp(1.0, -7), 127)},
    };
    return all[int(format)];
}

// Distance between neighbouring numbers at this magnitude.
inline double ulp(Format format, double magnitude) {
    const FormatTraits &t = traits(format);
    int exponent = t.minimum_exponent;
    if (std::isfinite(magnitude) && magnitude != 0.0) {
        exponent = std::max(exponent, std::ilogb(magnitude));
    }
    return std::ldexp(1.0, exponent - t.mantissa_bits);
}

// To nearest, ties to even; beyond the largest number, infinity.
inline double rounded(Format format, double value) {
    if (!std::isfinite(value) || value == 0.0) {
        return value;
    }
    const double unit = ulp(format, std::fabs(value));
    const double nearest = std::nearbyint(value / unit) * unit;
    return std::fabs(nearest) > traits(format).maximum
        ? std::copysign(std::numeric_limits<double>::infinity(), value)
        : nearest;
}

// The upper half of an f32 is a bf16; an f16 is assembled from the parts of the rounded number.
inline uint32_t encode(Format format, double value) {
    const double number = rounded(format, value);
    if (format != Format::F16) {
        const float single = float(number);
        uint32_t bits;
        std::memcpy(&bits, &single, 4);
        return format == Format::F32 ? bits : bits >> 16;
    }
    const uint32_t sign = std::signbit(number) ? 0x8000 : 0;
    const double magnitude = std::fabs(number);
    if (std::isnan(number)) {
        return 0x7e00;
    }
    if (std::isinf(number)) {
        return sign | 0x7c00;
    }
    if (magnitude < std::ldexp(1.0, -14)) {
        return sign | uint32_t(magnitude * std::ldexp(1.0, 24));
    }
    const int exponent = std::ilogb(magnitude);
    return sign | uint32_t(exponent + 15) << 10 | uint32_t((std::ldexp(magnitude, -exponent) - 1.0) * 1024.0);
}

inline double decode(Format format, uint32_t bits) {
    if (format != Format::F16) {
        const uint32_t single_bits = format == Format::F32 ? bits : bits << 16;
        float single;
        std::memcpy(&single, &single_bits, 4);
        return single;
    }
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    const int exponent = bits >> 10 & 0x1f;
    const double mantissa = bits & 0x3ff;
    if (exponent == 0x1f) {
        return mantissa != 0.0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    }
    return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024.0 + mantissa, exponent - 25);
}
