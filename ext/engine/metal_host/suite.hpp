// A case: one kernel, its buffers, its grid; run under every schedule, then compared element by
// element with f64 reference values.
#pragma once

#include "buffers.hpp"
#include "random.hpp"
#include "runtime.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

// Bits of the `flags` field, as in common.metal.
enum Flag : uint32_t {
    ALIGNED = 1,
    HAS_WEIGHT = 2,
    HAS_BIAS = 4,
    HAS_ADDITIVE = 8,
    HAS_BOOLEAN = 16,
    HAS_LENGTHS = 32,
    INTERLEAVED = 64,
    IS_GATED = 128,
};

// A reference value, and the size of the terms it was made of: an f32 result is allowed a few units
// in the last place of that.
struct Expected {
    double value;
    double magnitude;
};

class Suite {
public:
    Suite(const host::Kernel *kernels, bool stop_at_first) : kernels_(kernels), stop_at_first_(stop_at_first) {}

    host::Entry find(const std::string &kernel) const;
    void begin(const std::string &what);
    void fail(const std::string &why);
    void measured(Format format, double ulps);
    // 0 when everything passed and every kernel of the library took part.
    int finish() const;

    double limit(Format format) const { return format == Format::F32 ? 6.0 : 0.501; }
    double normal(double mean = 0.0, double deviation = 1.0) { return random_.normal(mean, deviation); }

private:
    const host::Kernel *kernels_;
    bool stop_at_first_;
    Random random_{7};
    bool failed_ = false;
    int cases_ = 0;
    int failures_ = 0;
    mutable std::map<std::string, int> used_;
    std::map<Format, double> worst_;
    std::string current_;
};

class Case {
public:
    Case(Suite &suite, const std::string &kernel, Format format, const std::string &description);

    // A kernel may write over an input only where the case says so.
    void input(int index, Buffer &buffer, size_t byte_offset = 0) { bind(index, buffer, byte_offset, false); }
    void input(int index, View &view) { bind(index, view, false); }
    void written_over(int index, View &view) { bind(index, view, true); }
    Buffer &output(int index, size_t count);
    template <typename T>
    void parameters(int index, const T &value) {
        parameter_bytes_.assign(reinterpret_cast<const char *>(&value), reinterpret_cast<const char *>(&value) + sizeof value);
        parameter_index_ = index;
    }
    // False when the kernel misbehaved or two schedules differ; the case has failed then.
    bool run(uint32_t groups_x, uint32_t groups_y, uint32_t lanes);
    void compare(const Buffer &output, const std::vector<Expected> &expected);
    // The rows of an input that was written over; what lies between them must be as before.
    void compare(const View &view, const std::vector<Expected> &expected);

private:
    struct Binding {
        int index;
        Buffer *buffer;
        size_t byte_offset;
        bool is_written;
        std::vector<char> before;
    };
    void bind(int index, Buffer &buffer, size_t byte_offset, bool is_written);
    void bind(int index, View &view, bool is_written) { bind(index, view.buffer, view.offset * traits(view.format).bytes, is_written); }
    // Whether an element is what is expected; the case has failed otherwise.
    bool compare_element(size_t i, uint32_t bits, const Expected &expected);
    bool run_once(host::Schedule schedule, Buffer::Against side, host::Launch &launch);

    Suite &suite_;
    Format format_;
    host::Entry entry_;
    std::vector<Binding> inputs_;
    std::vector<std::pair<int, std::unique_ptr<Buffer>>> outputs_;
    std::vector<char> parameter_bytes_;
    int parameter_index_ = 0;
};

// Lanes of a threadgroup that works on one row, as the launcher computes them.
inline uint32_t lanes_for(size_t columns) {
    const size_t vectors = (columns + 3) / 4;
    const size_t lanes = ((vectors + 1) / 2 + 31) / 32 * 32;
    return uint32_t(std::min<size_t>(std::max<size_t>(lanes, 32), host::MAXIMUM_LANES));
}

inline bool output_aligned(size_t rows, size_t columns) { return rows <= 1 || columns % 4 == 0; }

void norm_cases(Suite &suite);
void softmax_cases(Suite &suite);
void activation_cases(Suite &suite);
void rope_cases(Suite &suite);
void pooling_cases(Suite &suite);
