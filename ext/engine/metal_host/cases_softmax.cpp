// Softmax with every combination of scale, additive mask, boolean mask and lengths.
#include "suite.hpp"

#include <functional>

namespace {

struct SoftmaxParameters {
    uint32_t columns;
    uint32_t flags;
    float scale;
    Rows input;
    Rows additive;
    Rows boolean;
    Rows lengths;
};

struct Setup {
    Arrangement arrangement = Arrangement::Contiguous;
    size_t rows = 3;
    size_t columns = 1;
    uint32_t masks = 0;  // HAS_ADDITIVE | HAS_BOOLEAN | HAS_LENGTHS
    double scale = 1.0;
    uint32_t lanes = 0;
    std::function<double(size_t, size_t)> score;
    std::function<double(size_t, size_t)> bias;
    std::function<bool(size_t, size_t)> kept;
    std::function<uint32_t(size_t)> length;
};

constexpr double INFINITE = std::numeric_limits<double>::infinity();

// Softmax over the kept elements of one row, in f64.
void reference(const std::vector<double> &scores, const std::vector<bool> &kept, std::vector<Expected> &out) {
    double highest = -INFINITE, sum = 0.0;
    bool poisoned = false;
    for (size_t i = 0; i < scores.size(); i++) {
        poisoned = poisoned || (kept[i] && std::isnan(scores[i]));
        if (kept[i] && scores[i] > highest) highest = scores[i];
    }
    for (size_t i = 0; i < scores.size(); i++) {
        if (kept[i]) sum += std::exp(scores[i] - highest);
    }
    const bool undefined = poisoned || std::isinf(highest);
    const bool partly = undefined && std::isfinite(highest);  // a NaN next to finite scores spoils the masked ones, too
    for (size_t i = 0; i < scores.size(); i++) {
        if (undefined && (kept[i] || partly || highest == INFINITE)) {
            out.push_back({std::nan(""), 0.0});
            continue;
        }
        const double share = kept[i] ? std::exp(scores[i] - highest) / sum : 0.0;
        out.push_back({share, share * (1.0 + std::fabs(scores[i]) + std::fabs(highest))});
    }
}

// Two rows share one mask row, as the heads of one sequence do.
Rows shared_by_two(size_t stride) {
    Rows rows;
    rows.inner_size = 2;
    rows.middle_size = 1000;
    rows.middle_stride = stride;
    return rows;
}

void run_case(Suite &suite, const Setup &s, Format format, const std::string &title) {
    const size_t mask_rows = (s.rows + 1) / 2;
    View x(format, s.arrangement, s.rows, s.columns);
    View additive(format, Arrangement::Contiguous, mask_rows, s.columns);
    Buffer boolean(1, mask_rows * s.columns), lengths(4, mask_rows);
    for (size_t row = 0; row < mask_rows; row++) {
        for (size_t i = 0; i < s.columns; i++) {
            additive.set(row, i, s.bias ? s.bias(row, i) : 0.0);
            boolean.set_bits(row * s.columns + i, !s.kept || s.kept(row, i) ? 1 + i % 3 : 0);
        }
        lengths.set_bits(row, s.length ? s.length(row) : uint32_t(s.columns));
    }
    const double lowest = -traits(format).maximum;
    std::vector<Expected> expected;
    for (size_t row = 0; row < s.rows; row++) {
        std::vector<double> scores(s.columns);
        std::vector<bool> kept(s.columns, true);
        for (size_t i = 0; i < s.columns; i++) {
            x.set(row, i, s.score(row, i));
            scores[i] = x.get(row, i) * float(s.scale);
            if (s.masks & HAS_ADDITIVE) {
                const double bias = additive.get(row / 2, i);
                kept[i] = !(bias <= lowest);
                scores[i] += kept[i] ? bias : 0.0;
            }
            if (s.masks & HAS_BOOLEAN) kept[i] = kept[i] && boolean.bits(row / 2 * s.columns + i) != 0;
            if (s.masks & HAS_LENGTHS) kept[i] = kept[i] && i < lengths.bits(row / 2);
        }
        reference(scores, kept, expected);
    }
    Case c(suite, "softmax", format,
           title + " " + std::to_string(s.rows) + "x" + std::to_string(s.columns) + " " + name(s.arrangement) + " masks " +
               std::to_string(s.masks));
    const bool aligned = x.aligned() && output_aligned(s.rows, s.columns) && (!(s.masks & HAS_ADDITIVE) || s.columns % 4 == 0);
    SoftmaxParameters p{uint32_t(s.columns), s.masks | (aligned ? ALIGNED : 0u), float(s.scale), x.rows,
                        shared_by_two(s.columns), shared_by_two(s.columns), shared_by_two(1)};
    c.input(0, x);
    if (s.masks & HAS_ADDITIVE) c.input(1, additive); else c.input(1, x);
    if (s.masks & HAS_BOOLEAN) c.input(2, boolean); else c.input(2, x);
    if (s.masks & HAS_LENGTHS) c.input(3, lengths); else c.input(3, x);
    Buffer &out = c.output(4, s.rows * s.columns);
    c.parameters(5, p);
    if (c.run(s.rows, 1, s.lanes ? s.lanes : lanes_for(s.columns))) c.compare(out, expected);
}

Setup ordinary(Suite &suite) {
    Setup s;
    s.scale = 0.125;
    s.score = [&suite](size_t, size_t) { return suite.normal(0.0, 20.0); };
    s.bias = [&suite](size_t, size_t i) { return i % 5 == 3 ? -INFINITE : suite.normal(); };
    s.kept = [](size_t row, size_t i) { return (i * 7 + row) % 4 != 1; };
    s.length = [](size_t row) { return uint32_t(row == 0 ? 77 : 3); };
    return s;
}

void shapes(Suite &suite, Format format) {
    for (uint32_t masks = 0; masks < 64; masks += HAS_ADDITIVE) {
        for (size_t columns : {1, 2, 3, 4, 5, 31, 33, 64, 77, 128, 130, 512, 1000, 1025, 4100}) {
            Setup s = ordinary(suite);
            s.columns = columns;
            s.masks = masks;
            run_case(suite, s, format, "shape");
        }
        Setup s = ordinary(suite);
        s.masks = masks;
        s.columns = 132;
        for (Arrangement a : {Arrangement::PaddedOdd, Arrangement::PaddedAligned, Arrangement::Transposed}) {
            s.arrangement = a;
            s.rows = 7;
            run_case(suite, s, format, "strided");
        }
    }
    Setup s = ordinary(suite);
    s.rows = 1;
    for (size_t columns : {65535, 65536}) {
        s.columns = columns;
        run_case(suite, s, format, "wide");
    }
    s.rows = 0;
    s.columns = 64;
    run_case(suite, s, format, "no rows");
    s.rows = 2;
    for (uint32_t lanes : {32u, 96u, 1024u}) {
        s.lanes = lanes;
        s.columns = 9000;
        run_case(suite, s, format, "lanes " + std::to_string(lanes));
    }
}

void hard_rows(Suite &suite, Format format) {
    Setup s = ordinary(suite);
    s.columns = 130;
    s.scale = 1.0;
    s.score = [](size_t, size_t i) { return i % 2 ? 60000.0 : -60000.0; };
    run_case(suite, s, format, "large scores");

    s = ordinary(suite);
    s.columns = 130;
    s.masks = HAS_ADDITIVE;
    s.bias = [](size_t row, size_t) { return row == 1 ? -INFINITE : 0.0; };
    run_case(suite, s, format, "fully masked by -infinity");
    s.bias = [](size_t row, size_t i) { return row == 1 || i > 9 ? double(std::numeric_limits<float>::lowest()) : 0.0; };
    run_case(suite, s, format, "f32::MIN as the mask");
    s.bias = [format](size_t row, size_t i) { return row == 1 || i > 9 ? -traits(format).maximum : 0.0; };
    run_case(suite, s, format, "lowest number as the mask");

    s = ordinary(suite);
    s.columns = 130;
    s.masks = HAS_BOOLEAN;
    s.kept = [](size_t row, size_t) { return row != 1; };
    run_case(suite, s, format, "fully masked by booleans");
    s.masks = HAS_LENGTHS;
    s.length = [](size_t row) { return row == 1 ? 0u : 130u; };
    run_case(suite, s, format, "length 0");

    for (double special : {INFINITE, -INFINITE, std::nan("")}) {
        s = ordinary(suite);
        s.columns = 130;
        s.score = [&suite, special](size_t row, size_t i) { return row == 1 && i == 129 ? special : suite.normal(); };
        run_case(suite, s, format, "special " + std::to_string(special));
        s.masks = HAS_LENGTHS;
        s.length = [](size_t) { return 100u; };
        run_case(suite, s, format, "masked special " + std::to_string(special));
        s.score = [special](size_t, size_t) { return special; };
        run_case(suite, s, format, "all special " + std::to_string(special));
    }
}

}  // namespace

void softmax_cases(Suite &suite) {
    for (Format format : ALL_FORMATS) {
        shapes(suite, format);
        hard_rows(suite, format);
    }
}
