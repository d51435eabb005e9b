// LayerNorm and RMSNorm, alone and with a residual.
#include "suite.hpp"

#include <functional>

namespace {

struct NormParameters {
    uint32_t columns;
    uint32_t flags;
    float epsilon;
    float weight_offset;
    Rows input;
    Rows residual;
};

struct Options {
    bool centered = true;
    bool add = false;
    bool weight = true;
    bool bias = false;
    double epsilon = 1e-5;
    double offset = 0.0;
    uint32_t lanes = 0;
};

using Fill = std::function<double(size_t row, size_t column)>;

std::string kernel_name(const Options &o) {
    return std::string(o.add ? "add_" : "") + (o.centered ? "layer_norm" : "rms_norm");
}

struct Affine {
    View weight, bias;
};

// One row of the reference, in f64 from the stored inputs.
void reference(const std::vector<double> &v, const Affine &affine, const Options &o, std::vector<Expected> &out) {
    const double epsilon = float(o.epsilon);
    double mean = 0.0, variance = 0.0;
    if (o.centered) {
        for (double x : v) mean += x;
        mean /= v.size();
    }
    for (double x : v) variance += (x - mean) * (x - mean);
    const double inverse = 1.0 / std::sqrt(variance / v.size() + epsilon);
    for (size_t i = 0; i < v.size(); i++) {
        const double n = (v[i] - mean) * inverse;
        const double w = o.weight ? affine.weight.get(0, i) + o.offset : 1.0;
        const double b = o.bias ? affine.bias.get(0, i) : 0.0;
        const double size = o.centered ? std::max(std::fabs(n), 1.0) : std::fabs(n);
        out.push_back({n * w + b, size * std::fabs(w) + std::fabs(b)});
    }
}

void run_case(Suite &suite, const Options &o, Format format, Arrangement arrangement, size_t rows, size_t columns,
              const Fill &fill, const std::string &title) {
    View x(format, arrangement, rows, columns);
    View residual(format, arrangement == Arrangement::Transposed ? Arrangement::Contiguous : arrangement, rows, columns);
    Affine affine{View(format, Arrangement::Contiguous, 1, columns), View(format, Arrangement::Contiguous, 1, columns)};
    for (size_t i = 0; i < columns; i++) {
        affine.weight.set(0, i, suite.normal(1.0 - o.offset, 0.2));
        affine.bias.set(0, i, suite.normal(0.0, 0.2));
    }
    std::vector<Expected> sums, normalized;
    for (size_t row = 0; row < rows; row++) {
        std::vector<double> v(columns);
        for (size_t i = 0; i < columns; i++) {
            x.set(row, i, fill(row, i));
            residual.set(row, i, suite.normal());
            v[i] = x.get(row, i);
            if (o.add) {
                v[i] += residual.get(row, i);
                sums.push_back({v[i], std::fabs(v[i])});
                v[i] = rounded(format, v[i]);
            }
        }
        reference(v, affine, o, normalized);
    }

    Case c(suite, kernel_name(o), format,
           title + " " + std::to_string(rows) + "x" + std::to_string(columns) + " " + name(arrangement));
    const bool aligned = x.aligned() && (!o.add || residual.aligned()) && output_aligned(rows, columns);
    NormParameters p{uint32_t(columns),
                     (aligned ? ALIGNED : 0u) | (o.weight ? HAS_WEIGHT : 0u) | (o.bias ? HAS_BIAS : 0u),
                     float(o.epsilon), float(o.offset), x.rows, residual.rows};
    int slot = 0;
    if (o.add) {
        c.written_over(slot++, x);
        c.input(slot++, residual);
    } else {
        c.input(slot++, x);
    }
    c.input(slot++, o.weight ? affine.weight : residual);
    c.input(slot++, o.bias ? affine.bias : residual);
    Buffer &out = c.output(slot++, rows * columns);
    c.parameters(slot, p);
    if (c.run(rows, 1, o.lanes ? o.lanes : lanes_for(columns))) {
        c.compare(out, normalized);
        if (o.add) c.compare(x, sums);
    }
}

std::vector<Options> kinds() {
    std::vector<Options> all;
    for (bool add : {false, true}) {
        for (bool centered : {true, false}) {
            Options o;
            o.add = add;
            o.centered = centered;
            o.bias = centered;
            o.offset = centered ? 0.0 : 1.0;
            all.push_back(o);
        }
    }
    return all;
}

void shapes(Suite &suite, const Options &o, Format format) {
    const Fill ordinary = [&](size_t row, size_t) { return suite.normal(0.3, row == 1 ? 300.0 : 1.5); };
    for (Arrangement a : {Arrangement::Contiguous, Arrangement::PaddedOdd, Arrangement::PaddedAligned, Arrangement::Transposed}) {
        for (size_t columns : {1, 2, 3, 4, 5, 7, 8, 31, 33, 64, 127, 128, 130, 384, 768, 1000, 1025, 4100}) {
            run_case(suite, o, format, a, a == Arrangement::Transposed ? 7 : 3, columns, ordinary, "shape");
        }
    }
    for (size_t columns : {16384, 65535, 65536}) {
        run_case(suite, o, format, Arrangement::Contiguous, 1, columns, ordinary, "wide");
    }
    run_case(suite, o, format, Arrangement::Contiguous, 0, 768, ordinary, "no rows");
    for (uint32_t lanes : {32u, 96u, 1024u}) {
        Options other = o;
        other.lanes = lanes;
        for (size_t columns : {33, 768, 9000}) {
            run_case(suite, other, format, Arrangement::Contiguous, 2, columns, ordinary, "lanes " + std::to_string(lanes));
        }
    }
    for (int variant = 0; variant < 4; variant++) {
        Options other = o;
        other.weight = variant & 1;
        other.bias = variant & 2;
        run_case(suite, other, format, Arrangement::Contiguous, 2, 101, ordinary, "affine " + std::to_string(variant));
    }
}

// Rows that E[x^2] - E[x]^2, or statistics in half, get wrong.
void hard_rows(Suite &suite, const Options &o, Format format) {
    const auto offset_row = [&](double mean, double deviation) -> Fill {
        return [&suite, mean, deviation](size_t, size_t) { return suite.normal(mean, deviation); };
    };
    for (double epsilon : {1e-5, 1e-12}) {
        Options other = o;
        other.epsilon = epsilon;
        run_case(suite, other, format, Arrangement::Contiguous, 2, 768, [](size_t, size_t) { return 3.3; }, "constant 3.3");
        run_case(suite, other, format, Arrangement::Contiguous, 2, 1, [](size_t, size_t) { return -2.0; }, "one element");
        run_case(suite, other, format, Arrangement::Contiguous, 2, 768, offset_row(1000.0, 0.1), "mean 1000 std 0.1");
        run_case(suite, other, format, Arrangement::Contiguous, 2, 768, offset_row(100.0, 0.01), "mean 100 std 0.01");
        run_case(suite, other, format, Arrangement::Contiguous, 2, 768, offset_row(1e4, 1e-3), "mean 1e4 std 1e-3");
        run_case(suite, other, format, Arrangement::Contiguous, 2, 768, offset_row(0.0, 1e-5), "std 1e-5");
    }
    const double infinity = std::numeric_limits<double>::infinity();
    for (double special : {infinity, -infinity, std::nan("")}) {
        for (size_t at : {0, 37, 129}) {
            const Fill fill = [&suite, special, at](size_t row, size_t i) { return row == 1 && i == at ? special : suite.normal(); };
            run_case(suite, o, format, Arrangement::Contiguous, 3, 130, fill, "special " + std::to_string(special));
        }
    }
    const Fill outlier = [&suite](size_t, size_t i) { return i == 5 ? 5000.0 : suite.normal(); };
    run_case(suite, o, format, Arrangement::Contiguous, 2, 768, outlier, "outlier");
}

}  // namespace

void norm_cases(Suite &suite) {
    for (const Options &o : kinds()) {
        for (Format format : ALL_FORMATS) {
            shapes(suite, o, format);
            hard_rows(suite, o, format);
        }
    }
}
