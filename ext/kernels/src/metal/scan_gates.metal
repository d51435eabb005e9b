// What stands around scans, in f32: how much states keep, the gates of recurrent units, and vectors of length one.

struct GateParameters {
    uint width;
    uint rule;
    float number;
};

struct UnitParameters {
    uint width;
    uint size;          // of a head
    uint first_heads;   // with the first factor; and those that have a factor at all
    uint heads;
    float first;
    float second;
    float epsilon;
};

// exp(x) - 1, for small ones, too.
static inline float exp_less_one(float x) {
    const float power = exp(x);
    if (power == 1.0f) {
        return x;
    }
    const float less = power - 1.0f;
    return less == -1.0f ? -1.0f : less * x / log(power);
}

// How much states keep, given x, and a bias and a rate for each column. The order of rules is that of `Decay` in Rust.
kernel void scan_decays_f32(
    device const float *x        [[buffer(0)]],
    device const float *numbers  [[buffer(1)]],
    device float *out            [[buffer(2)]],
    constant GateParameters &p   [[buffer(3)]],
    uint2 group                  [[threadgroup_position_in_grid]],
    uint index                   [[thread_index_in_threadgroup]],
    uint2 lanes                  [[threads_per_threadgroup]]
) {
    const uint column = group.x * lanes.x + index;
    if (column >= p.width) {
        return;
    }
    const ulong at = ulong(group.y) * p.width + column;
    const float given = x[at] + numbers[column];
    const float rate = numbers[p.width + column];
    float exponent = 0.0f;
    if (p.rule == 0) {
        exponent = -rate * softplus(given);
    } else if (p.rule == 1) {
        exponent = p.number * Sigmoid::apply(rate * given);
    } else {
        exponent = -rate * exp(given);
    }
    out[at] = exp(exponent);
}

// What recurrent units take of their inputs, and beside it what they keep.
kernel void scan_open_f32(
    device const float *given    [[buffer(0)]],
    device const float *input    [[buffer(1)]],
    device const float *fading   [[buffer(2)]],
    device const float *numbers  [[buffer(3)]],
    device const uint *begins    [[buffer(4)]],
    device float *out            [[buffer(5)]],
    constant GateParameters &p   [[buffer(6)]],
    uint2 group                  [[threadgroup_position_in_grid]],
    uint index                   [[thread_index_in_threadgroup]],
    uint2 lanes                  [[threads_per_threadgroup]]
) {
    const uint column = group.x * lanes.x + index;
    if (column >= p.width) {
        return;
    }
    const uint token = group.y;
    const ulong at = ulong(token) * p.width + column;
    const float exponent = Sigmoid::apply(fading[at] + numbers[p.width + column]) * numbers[2 * p.width + column];
    float taken = given[at] * Sigmoid::apply(input[at] + numbers[column]);
    if (begins[token] == 0) {
        taken *= sqrt(-exp_less_one(exponent + exponent));
    }
    out[2 * ulong(token) * p.width + column] = taken;
    out[(2 * ulong(token) + 1) * p.width + column] = exp(exponent);
}

// The first heads of rows divided by their lengths; a simdgroup has a head, or as much of the rest.
kernel void scan_units_f32(
    device const float *x        [[buffer(0)]],
    device float *out            [[buffer(1)]],
    constant UnitParameters &p   [[buffer(2)]],
    uint2 group                  [[threadgroup_position_in_grid]],
    uint lane                    [[thread_index_in_simdgroup]]
) {
    const uint first = group.x * p.size;
    const uint last = min(first + p.size, p.width);
    device const float *from = x + ulong(group.y) * p.width;
    device float *to = out + ulong(group.y) * p.width;
    float factor = 1.0f;
    if (group.x < p.heads) {
        float squares = 0.0f;
        for (uint i = first + lane; i < last; i += 32) {
            squares = fma(from[i], from[i], squares);
        }
        squares = simd_sum(squares);
        factor = 1.0f / sqrt(squares + p.epsilon) * (group.x < p.first_heads ? p.first : p.second);
    }
    for (uint i = first + lane; i < last; i += 32) {
        to[i] = from[i] * factor;
    }
}
