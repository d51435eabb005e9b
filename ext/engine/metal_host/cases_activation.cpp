// Activations and gated products. The 16-bit formats are tested on every number they have.
#include "suite.hpp"

#include <functional>

namespace {

struct ActivationParameters {
    uint32_t columns;
    uint32_t flags;
    Rows gate;
    Rows up;
};

struct Activation {
    const char *name;
    // The value, and by how much a relative error of the argument of exp is multiplied.
    Expected (*reference)(double x);
};

Expected logistic_product(double x, double argument) {
    const double value = x / (1.0 + std::exp(-argument));
    return {value, std::fabs(value) * (1.0 + std::fabs(argument))};
}

Expected gelu_erf(double x) {
    const double value = 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    return {value, std::fabs(value)};
}

Expected gelu_tanh(double x) {
    return logistic_product(x, 2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x));
}

Expected quick_gelu(double x) { return logistic_product(x, 1.702 * x); }

Expected silu(double x) { return logistic_product(x, x); }

Expected relu(double x) { return {x < 0.0 ? 0.0 : x, std::fabs(x)}; }

Expected sigmoid(double x) {
    const double value = 1.0 / (1.0 + std::exp(-x));
    return {value, value * (1.0 + std::fabs(x))};
}

Expected tanh(double x) { return {std::tanh(x), std::fabs(std::tanh(x))}; }

Expected identity(double x) { return {x, std::fabs(x)}; }

const Activation ACTIVATIONS[] = {
    {"gelu_erf", gelu_erf}, {"gelu_tanh", gelu_tanh}, {"quick_gelu", quick_gelu}, {"silu", silu}, {"relu", relu},
    {"sigmoid", sigmoid}, {"tanh", tanh}, {"identity", identity},
};

using Fill = std::function<double(size_t row, size_t column)>;

constexpr uint32_t LANES = 256;

void run_case(Suite &suite, const Activation &activation, Format format, bool gated, Arrangement arrangement,
              size_t rows, size_t columns, const Fill &fill, const std::string &title) {
    // One buffer [gate | up] per row when gated, as a fused projection leaves it.
    View x(format, arrangement, rows, gated ? 2 * columns : columns);
    std::vector<Expected> expected;
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < columns; i++) {
            x.set(row, i, fill(row, i));
            Expected e = activation.reference(x.get(row, i));
            if (gated) {
                x.set(row, columns + i, suite.normal());
                const double up = x.get(row, columns + i);
                e = {e.value * up, e.magnitude * std::fabs(up)};
            }
            expected.push_back(e);
        }
    }
    Case c(suite, activation.name, format,
           title + (gated ? " gated " : " ") + std::to_string(rows) + "x" + std::to_string(columns) + " " + name(arrangement));
    const bool aligned = x.aligned() && output_aligned(rows, columns) && (!gated || columns % 4 == 0);
    ActivationParameters p{uint32_t(columns), (aligned ? ALIGNED : 0u) | (gated ? IS_GATED : 0u), x.rows, x.rows};
    c.input(0, x);
    c.input(1, x.buffer, (x.offset + (gated ? columns : 0)) * traits(format).bytes);
    Buffer &out = c.output(2, rows * columns);
    c.parameters(3, p);
    const uint32_t lanes = (columns + 3) / 4;
    if (c.run((lanes + LANES - 1) / LANES, rows, LANES)) c.compare(out, expected);
}

// Every bit pattern but the negative zero's; for f32, 65,536 patterns spread over all exponents.
void every_number(Suite &suite, const Activation &activation, Format format) {
    const Fill fill = [format](size_t, size_t i) {
        return decode(format, format == Format::F32 ? uint32_t(i << 16 | (i * 40503 & 0xffff)) : uint32_t(i));
    };
    run_case(suite, activation, format, false, Arrangement::Contiguous, 1, 65536, fill, "every number");
}

}  // namespace

void activation_cases(Suite &suite) {
    const Fill ordinary = [&suite](size_t, size_t) { return suite.normal(0.0, 3.0); };
    const Fill sweep = [](size_t, size_t i) { return -20.0 + double(i) / 1000.0; };
    for (const Activation &activation : ACTIVATIONS) {
        for (Format format : ALL_FORMATS) {
            for (bool gated : {false, true}) {
                for (size_t columns : {1, 2, 3, 4, 5, 7, 33, 128, 1000, 1023, 1025, 2052}) {
                    run_case(suite, activation, format, gated, Arrangement::Contiguous, 3, columns, ordinary, "shape");
                }
                for (Arrangement a : {Arrangement::PaddedOdd, Arrangement::PaddedAligned, Arrangement::Transposed}) {
                    run_case(suite, activation, format, gated, a, 7, 132, ordinary, "strided");
                }
                run_case(suite, activation, format, gated, Arrangement::Contiguous, 0, 64, ordinary, "no rows");
            }
            run_case(suite, activation, format, false, Arrangement::Contiguous, 1, 40001, sweep, "sweep");
            every_number(suite, activation, format);
        }
    }
}
