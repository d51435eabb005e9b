// What a sampler has to know of rows of logits beside the largest ones: the sum of all weights, and a token drawn by
// them. A weight is e to the (logit - largest) / temperature, and 0 where the logit is not finite. A threadgroup works
// on one row.
//
// Metal has no double: a weight is computed as the sum of two floats, to about 46 bits, and counted in units of 2^-62.
// Sums of whole numbers are the same in any order, so that a token is found by the sums of parts of its row.

struct SamplingParameters {
    uint columns;
};

// What is wanted of a row, and what it gets.
constant constexpr uint WORDS = 4;
// No token is drawn.
constant constexpr uint NONE = 0xffffffff;
// Bits of a digit of a count.
constant constexpr uint DIGIT = 31;
constant constexpr uint DIGIT_MASK = 0x7fffffff;
// Of the mantissa of a double.
constant constexpr uint DOUBLE_BITS = 53;
// 2^31.
constant constexpr float DIGIT_UNITS = 2147483648.0f;
// Weights of less are below the unit.
constant constexpr float LEAST_EXPONENT = -43.0f;

// A number is the sum of two floats, the second of which is at most half of the last bit of the first.
static inline float2 pair_of(float high, float low) {
    float2 pair;
    pair.x = high;
    pair.y = low;
    return pair;
}

// Where the first is larger.
static inline float2 quick_sum(float a, float b) {
    const float sum = a + b;
    return pair_of(sum, b - (sum - a));
}

static inline float2 exact_sum(float a, float b) {
    const float sum = a + b;
    const float other = sum - a;
    return pair_of(sum, (a - (sum - other)) + (b - other));
}

static inline float2 exact_product(float a, float b) {
    const float product = a * b;
    return pair_of(product, fma(a, b, -product));
}

static inline float2 sum_of(float2 a, float2 b) {
    const float2 sum = exact_sum(a.x, b.x);
    return quick_sum(sum.x, sum.y + (a.y + b.y));
}

static inline float2 product_of(float2 a, float2 b) {
    const float2 product = exact_product(a.x, b.x);
    return quick_sum(product.x, product.y + fma(a.x, b.y, a.y * b.x));
}

// e^x for x from LEAST_EXPONENT to 0: x is a multiple of ln 2 and a rest of at most half of it, for which the series is
// summed.
static inline float2 exponential(float2 x) {
    const float power = floor(fma(x.x, 1.44269504f, 0.5f));
    // ln 2 in three parts, the first of which has few bits: its multiples are exact.
    float2 rest = exact_sum(x.x, -power * 0.693145752f);
    rest = quick_sum(rest.x, rest.y + x.y);
    rest = sum_of(rest, exact_product(-power, 1.428606765e-06f));
    rest.y = fma(-power, 5.497924165e-14f, rest.y);
    // From the eighth power on a float has bits enough.
    const float r = rest.x;
    float end = fma(r, 2.087675588e-09f, 2.505210794e-08f);
    end = fma(r, end, 2.755731998e-07f);
    end = fma(r, end, 2.755731884e-06f);
    end = fma(r, end, 2.480158764e-05f);
    float2 sum = sum_of(pair_of(1.984127011e-04f, -2.725596875e-12f), exact_product(r, end));
    sum = sum_of(product_of(sum, rest), pair_of(1.388888923e-03f, -3.363109444e-11f));
    sum = sum_of(product_of(sum, rest), pair_of(8.333333768e-03f, -4.346172033e-10f));
    sum = sum_of(product_of(sum, rest), pair_of(4.166666791e-02f, -1.241763470e-09f));
    sum = sum_of(product_of(sum, rest), pair_of(1.666666716e-01f, -4.967053879e-09f));
    sum = sum_of(product_of(sum, rest), pair_of(0.5f, 0.0f));
    sum = sum_of(product_of(sum, rest), pair_of(1.0f, 0.0f));
    sum = sum_of(product_of(sum, rest), pair_of(1.0f, 0.0f));
    const float scale = as_type<float>(uint(int(power) + 127) << 23);
    return pair_of(sum.x * scale, sum.y * scale);
}

// A count of units of 2^-62 is two digits, the low one of which, y, is below 2^31.
static inline long2 count_of(long high, long low) {
    long2 count;
    count.x = high + (low >> DIGIT);
    count.y = low & long(DIGIT_MASK);
    return count;
}

static inline long2 together(long2 a, long2 b) {
    return count_of(a.x + b.x, a.y + b.y);
}

static inline long2 without(long2 a, long2 b) {
    return count_of(a.x - b.x, a.y - b.y);
}

static inline bool is_below(long2 a, long2 b) {
    return a.x < b.x || (a.x == b.x && a.y < b.y);
}

// What makes weights of numbers: the largest of a row, and 1 / temperature.
struct Scale {
    float best;
    float2 inverse;
};

static inline long2 weight_of(float number, thread const Scale &scale) {
    if (!(number <= scale.best && number > -INFINITY)) {
        return count_of(0, 0);
    }
    if (number == scale.best) {
        return count_of(long(1) << DIGIT, 0);
    }
    const float2 distance = exact_sum(number, -scale.best);
    // Neither is what is infinite or no number.
    if (!(distance.x * scale.inverse.x > LEAST_EXPONENT)) {
        return count_of(0, 0);
    }
    const float2 weight = exponential(product_of(distance, scale.inverse));
    const float high = weight.x * DIGIT_UNITS;
    const float low = weight.y * DIGIT_UNITS;
    const float whole_high = floor(high);
    const float whole_low = floor(low);
    return count_of(long(uint(whole_high)) + long(int(whole_low)),
                    long(uint((high - whole_high) * DIGIT_UNITS)) + long(uint((low - whole_low) * DIGIT_UNITS)));
}

static inline long2 sum_of_counts(threadgroup const long2 *counts, uint number) {
    long2 sum = count_of(0, 0);
    for (uint i = 0; i < number; i++) {
        sum = together(sum, counts[i]);
    }
    return sum;
}

// The first count whose sum with those before it is above `left`, of which those before it are taken.
static inline uint reach(threadgroup const long2 *counts, uint number, thread long2 &left) {
    uint at = 0;
    while (at + 1 < number && !is_below(left, counts[at])) {
        left = without(left, counts[at]);
        at++;
    }
    return at;
}

// A share of a count, below the whole: the product of numbers of three and of two digits, rounded as a double is, to 53
// bits, so that a random number finds the token that it finds on other devices.
static inline long2 share_of(long2 total, uint uniform, uint uniform_rest) {
    const ulong whole = ulong(total.x) >> DIGIT;
    const ulong high = ulong(total.x) & DIGIT_MASK;
    const ulong low = ulong(total.y);
    const ulong last = (high * uniform_rest + low * uniform) >> DIGIT;
    const ulong middle = whole * uniform_rest + high * uniform + last;
    const long2 exact = count_of(long(whole * uniform + (middle >> DIGIT)), long(middle & DIGIT_MASK));
    uint bits = DIGIT;
    for (long rest = exact.x; rest > 0; rest >>= 1) {
        bits++;
    }
    const long step = bits > DOUBLE_BITS ? long(1) << (bits - DOUBLE_BITS) : 1;
    const long2 share = count_of(exact.x, (exact.y + step / 2) / step * step);
    return is_below(share, total) ? share : without(total, count_of(0, 1));
}

kernel void sample_f32(
    device const float *x          [[buffer(0)]],
    device const uint *wants       [[buffer(1)]],
    device uint *told              [[buffer(2)]],
    constant SamplingParameters &p [[buffer(3)]],
    LANE_ARGUMENTS
) {
    threadgroup float tops[MAXIMUM_SIMDGROUPS];
    threadgroup long2 lanes[32 * MAXIMUM_SIMDGROUPS];
    threadgroup long2 parts[MAXIMUM_SIMDGROUPS];
    threadgroup uint chosen[1];
    const Lane at = LANE_STRUCT;
    device const float *from = x + ulong(row) * p.columns;
    device const uint *want = wants + ulong(row) * WORDS;
    device uint *said = told + ulong(row) * WORDS;
    float best = -INFINITY;
    for (uint i = index; i < p.columns; i += count) {
        const float number = from[i];
        if (number > best && number < INFINITY) {
            best = number;
        }
    }
    Scale scale;
    scale.best = group_max(best, tops, at);
    scale.inverse = pair_of(as_type<float>(want[0]), as_type<float>(want[1]));
    if (scale.inverse.x == 0.0f || scale.best == -INFINITY) {
        if (index < WORDS) {
            said[index] = index + 1 < WORDS ? 0 : NONE;
        }
        return;
    }

    // A simdgroup sums tokens that follow each other.
    const uint part = (p.columns + simdgroups - 1) / simdgroups;
    uint first = min(p.columns, simdgroup * part);
    uint end = min(p.columns, first + part);
    long2 own = count_of(0, 0);
    for (uint i = first + lane; i < end; i += 32) {
        own = together(own, weight_of(from[i], scale));
    }
    lanes[index] = own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) {
        parts[simdgroup] = sum_of_counts(lanes + 32 * simdgroup, 32);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    long2 left = count_of(0, 0);
    if (index == 0) {
        const long2 total = sum_of_counts(parts, simdgroups);
        said[0] = uint(total.x & 0xffffffff);
        said[1] = uint(total.x >> 32);
        said[2] = uint(total.y);
        said[3] = NONE;
        if (want[2] != NONE) {
            left = share_of(total, want[2], want[3]);
            chosen[0] = reach(parts, simdgroups, left);
        }
    }
    if (want[2] == NONE) {
        return;
    }

    // Of the part with the token that is drawn each lane sums a piece.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    first = chosen[0] * part;
    const uint length = min(p.columns, first + part) - first;
    const uint piece = (length + count - 1) / count;
    const uint begin = first + min(length, index * piece);
    end = first + min(length, (index + 1) * piece);
    own = count_of(0, 0);
    for (uint i = begin; i < end; i++) {
        own = together(own, weight_of(from[i], scale));
    }
    lanes[index] = own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) {
        parts[simdgroup] = sum_of_counts(lanes + 32 * simdgroup, 32);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (index == 0) {
        const uint group = reach(parts, simdgroups, left);
        const uint own_piece = 32 * group + reach(lanes + 32 * group, 32, left);
        uint token = first + own_piece * piece;
        while (token + 1 < first + length && !is_below(left, weight_of(from[token], scale))) {
            left = without(left, weight_of(from[token], scale));
            token++;
        }
        said[3] = token;
    }
}
