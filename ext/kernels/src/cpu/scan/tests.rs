//! Every scan on every instruction set: against its definition in f64, and whole against parts of one row.

use super::*;
use crate::cpu::isa::Isa;
use crate::cpu::test_numbers::numbers;
use crate::reference;
use crate::Activation;

const ROWS: usize = 37;

fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|x| f64::from(*x)).collect()
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn assert_close(isa: Isa, what: &str, found: &[f32], exact: &[f64]) {
    assert_eq!(found.len(), exact.len());
    for (at, (found, exact)) in found.iter().zip(exact).enumerate() {
        let distance = (f64::from(*found) - exact).abs();
        let allowed = 1e-5 * exact.abs().max(1.0);
        assert!(
            distance < allowed,
            "{} {what} {at}: {found} instead of {exact}",
            isa.name()
        );
    }
}

/// Runs a scan whole and in parts of 1 and of 7 rows, and compares with what it is.
fn compared(
    width: usize,
    first: &[f32],
    outputs: usize,
    run: impl Fn(Isa, ScanRows<'_>, &mut [f32], &mut [f32]),
    expected: impl Fn(&[f64], &mut [f64]) -> Vec<f64>,
) {
    let inputs = numbers(ROWS * width, 3);
    let mut exact = wide(first);
    let rows = inputs.chunks_exact(width);
    let expected: Vec<f64> = rows
        .flat_map(|row| expected(&wide(row), &mut exact))
        .collect();
    for isa in Isa::of_numbers() {
        let through = |part: usize| {
            let (mut state, mut found) = (first.to_vec(), vec![0.0; ROWS * outputs]);
            let pieces = inputs.chunks(part * width);
            for (inputs, out) in pieces.zip(found.chunks_mut(part * outputs)) {
                run(isa, ScanRows { inputs, width }, &mut state, out);
            }
            (state, found)
        };
        let (state, found) = through(ROWS);
        for part in [1, 7] {
            assert!(
                through(part) == (state.clone(), found.clone()),
                "{}",
                isa.name()
            );
        }
        assert_close(isa, "output", &found, &expected);
        assert_close(isa, "state", &state, &exact);
    }
}

#[test]
fn heads_of_mamba_2_match_their_definition() {
    for (keys, columns) in [(5, 3), (16, 32), (7, 37), (128, 64), (1, 1)] {
        let (bias, rate, skip, bounds) = (0.3, -1.3, 0.4, (0.2, 0.9));
        let lane = MatrixLane {
            keys,
            columns,
            query: 1 + columns + keys,
            key: 1 + columns,
            value: 1,
            rule: MatrixRule::Steps {
                time: 0,
                bias,
                bounds,
                rate,
                skip,
            },
        };
        compared(
            1 + columns + 2 * keys,
            &numbers(keys * columns, 5),
            columns,
            |isa, rows, state, out| matrix(isa, &lane, rows, state, out),
            |row, state| {
                let step = softplus(row[0] + f64::from(bias));
                let step = step.max(f64::from(bounds.0)).min(f64::from(bounds.1));
                let kept = (step * f64::from(rate)).exp();
                let mut out: Vec<f64> = row[1..=columns].to_vec();
                out.iter_mut().for_each(|x| *x *= f64::from(skip));
                for (number, state) in state.chunks_exact_mut(columns).enumerate() {
                    for (column, state) in state.iter_mut().enumerate() {
                        *state = *state * kept + step * row[1 + column] * row[lane.key + number];
                        out[column] += *state * row[lane.query + number];
                    }
                }
                out
            },
        );
    }
}

#[test]
fn linear_attention_matches_its_definition() {
    for (keys, columns) in [(4, 6), (32, 32), (9, 21)] {
        let lane = MatrixLane {
            keys,
            columns,
            query: 0,
            key: keys,
            value: 2 * keys,
            rule: MatrixRule::Plain { kept: 0.8 },
        };
        compared(
            2 * keys + columns,
            &numbers(keys * columns, 5),
            columns,
            |isa, rows, state, out| matrix(isa, &lane, rows, state, out),
            |row, state| {
                let mut out = vec![0.0; columns];
                for (number, state) in state.chunks_exact_mut(columns).enumerate() {
                    for (column, state) in state.iter_mut().enumerate() {
                        let written = row[keys + number] * row[2 * keys + column];
                        *state = *state * f64::from(0.8_f32) + written;
                        out[column] += *state * row[number];
                    }
                }
                out
            },
        );
    }
}

#[test]
fn the_delta_rule_matches_its_definition() {
    for (keys, columns, factors) in [(4, 6, 1), (7, 16, 7), (16, 21, 1), (16, 96, 16), (1, 32, 1)] {
        let fading = 2 * keys + columns;
        let lane = MatrixLane {
            keys,
            columns,
            query: 0,
            key: keys,
            value: 2 * keys,
            rule: MatrixRule::Delta {
                fading,
                factors,
                written: fading + factors,
            },
        };
        // Keys longer than one would let states grow without bounds.
        let scale = 1.0 / keys as f64;
        let run = |isa: Isa, rows: ScanRows<'_>, state: &mut [f32], out: &mut [f32]| {
            let mut inputs = rows.inputs.to_vec();
            for row in inputs.chunks_exact_mut(rows.width) {
                row[..2 * keys].iter_mut().for_each(|x| *x *= scale as f32);
            }
            let inputs = &inputs[..];
            matrix(isa, &lane, ScanRows { inputs, ..rows }, state, out);
        };
        compared(
            fading + factors + 1,
            &numbers(keys * columns, 5),
            columns,
            run,
            |row, state| {
                let mut out = vec![0.0; columns];
                for number in 0..keys {
                    let factor = row[fading + number.min(factors - 1)];
                    let state = &mut state[number * columns..][..columns];
                    state.iter_mut().for_each(|x| *x *= factor);
                }
                let of = |number: usize| f64::from(row[number] as f32 * scale as f32);
                for (column, out) in out.iter_mut().enumerate() {
                    let at = |number: usize| number * columns + column;
                    let found = (0..keys).map(|number| state[at(number)] * of(keys + number));
                    let change = row[2 * keys + column] - found.sum::<f64>();
                    for number in 0..keys {
                        state[at(number)] += of(keys + number) * change * row[fading + factors];
                        *out += state[at(number)] * of(number);
                    }
                }
                out
            },
        );
    }
}

#[test]
fn heads_of_rwkv_match_their_definition() {
    for (keys, columns) in [(4, 6), (7, 16), (64, 32), (16, 21), (1, 1)] {
        let kept = 2 * keys + columns;
        let (searched, rates) = (kept + keys, kept + 2 * keys);
        let rules = [
            MatrixRule::Earlier { kept },
            MatrixRule::Replace {
                kept,
                searched,
                rates,
            },
        ];
        for rule in rules {
            let lane = MatrixLane {
                keys,
                columns,
                query: 0,
                key: keys,
                value: 2 * keys,
                rule,
            };
            // What is searched for is of length one, and rates and what is kept are at most one.
            let scaled = |row: &mut [f32]| {
                row[kept..searched].iter_mut().for_each(|x| *x *= 0.9);
                row[searched..rates]
                    .iter_mut()
                    .for_each(|x| *x /= keys as f32);
            };
            let earlier = matches!(rule, MatrixRule::Earlier { .. });
            compared(
                kept + 3 * keys,
                &numbers(keys * columns, 5),
                columns,
                |isa, rows, state, out| {
                    let mut inputs = rows.inputs.to_vec();
                    inputs.chunks_exact_mut(rows.width).for_each(scaled);
                    let inputs = &inputs[..];
                    matrix(isa, &lane, ScanRows { inputs, ..rows }, state, out);
                },
                |row, state| {
                    let mut row: Vec<f32> = row.iter().map(|x| *x as f32).collect();
                    scaled(&mut row);
                    let row = wide(&row);
                    let mut out = vec![0.0; columns];
                    for (column, out) in out.iter_mut().enumerate() {
                        let at = |number: usize| number * columns + column;
                        let found = (0..keys).map(|n| state[at(n)] * row[searched + n]);
                        let found: f64 = if earlier { 0.0 } else { found.sum() };
                        for n in 0..keys {
                            let before = state[at(n)];
                            let replaced = found * row[searched + n] * row[rates + n];
                            let written = row[keys + n] * row[2 * keys + column];
                            state[at(n)] = before * row[kept + n] + written - replaced;
                            *out += row[n] * if earlier { before } else { state[at(n)] };
                        }
                    }
                    out
                },
            );
        }
    }
}

#[test]
fn channels_of_mamba_match_their_definition() {
    for (channels, kept) in [(3, 5), (32, 16), (19, 2)] {
        let rates: Vec<f32> = numbers(channels * kept, 7)
            .iter()
            .map(|x| x - 1.1)
            .collect();
        let skips = numbers(channels, 8);
        let lane = SelectiveLane {
            channels,
            kept,
            x: 0,
            time: channels,
            into: 2 * channels,
            from: 2 * channels + kept,
            rates: &rates,
            skips: &skips,
        };
        compared(
            2 * (channels + kept),
            &numbers(channels * kept, 5),
            channels,
            |isa, rows, state, out| selective(isa, &lane, rows, state, out),
            |row, state| {
                let mut out = vec![0.0; channels];
                for (channel, out) in out.iter_mut().enumerate() {
                    let (x, step) = (row[channel], softplus(row[channels + channel]));
                    *out = f64::from(skips[channel]) * x;
                    for number in 0..kept {
                        let at = number * channels + channel;
                        let decay = (step * f64::from(rates[at])).exp();
                        state[at] = state[at] * decay + step * x * row[lane.into + number];
                        *out += state[at] * row[lane.from + number];
                    }
                }
                out
            },
        );
    }
}

#[test]
fn recurrent_units_match_their_definition() {
    for channels in [1, 16, 45] {
        let lane = RglruLane {
            channels,
            taken: 1,
            kept: 2 + channels,
        };
        compared(
            2 * channels + 2,
            &numbers(channels, 5),
            channels,
            |isa, rows, state, out| rglru(isa, &lane, rows, state, out),
            |row, state| {
                for (channel, state) in state.iter_mut().enumerate() {
                    *state = *state * row[lane.kept + channel] + row[lane.taken + channel];
                }
                state.to_vec()
            },
        );
    }
}

#[test]
fn channels_of_rwkv_match_their_definition() {
    for channels in [1, 16, 45] {
        let (bonus, fading) = (numbers(channels, 6), numbers(channels, 7));
        let fading: Vec<f32> = fading.iter().map(|x| x - 1.5).collect();
        let lane = RwkvLane {
            channels,
            key: 0,
            value: channels,
            bonus: &bonus,
            fading: &fading,
        };
        compared(
            2 * channels,
            &vec![0.0; 3 * channels],
            channels,
            |isa, rows, state, out| rwkv(isa, &lane, rows, state, out),
            |row, state| {
                let mut out = vec![0.0; channels];
                for (channel, out) in out.iter_mut().enumerate() {
                    let (key, value) = (row[channel], row[channels + channel]);
                    let places = [channel, channels + channel, 2 * channels + channel];
                    let [total, weight, exponent] = places.map(|at| state[at]);
                    let scale = exponent.exp();
                    let (total, weight) = (total * scale, weight * scale);
                    let now = (key + f64::from(bonus[channel])).exp();
                    *out = (total + now * value) / (weight + now);
                    let faded = f64::from(fading[channel]);
                    let most = if weight == 0.0 {
                        key
                    } else {
                        (exponent + faded).max(key)
                    };
                    let (past, now) = ((faded - most).exp(), (key - most).exp());
                    state[places[0]] = total * past + now * value;
                    state[places[1]] = weight * past + now;
                    state[places[2]] = most;
                }
                out
            },
        );
    }
}

#[test]
fn convolutions_match_their_definition() {
    let cases = [
        (3, 4, Activation::Silu),
        (64, 4, Activation::Silu),
        (21, 1, Activation::Identity),
        (17, 3, Activation::Identity),
        (5, 12, Activation::GeluTanh),
    ];
    for (channels, taps, activation) in cases {
        let (weights, bias) = (numbers(taps * channels, 7), numbers(channels, 8));
        let lane = ConvolutionLane {
            channels,
            first: 2,
            weights: &weights,
            bias: &bias,
            activation,
        };
        compared(
            channels + 3,
            &numbers((taps - 1) * channels, 5),
            channels,
            |isa, rows, state, out| convolution(isa, &lane, rows, state, out),
            |row, state| {
                let mut read = state.to_vec();
                read.extend_from_slice(&row[2..2 + channels]);
                state.copy_from_slice(&read[channels..]);
                let sums = (0..channels).map(|channel| {
                    let taps = (0..taps).map(|tap| {
                        read[tap * channels + channel]
                            * f64::from(weights[tap * channels + channel])
                    });
                    taps.sum::<f64>() + f64::from(bias[channel])
                });
                sums.map(|x| reference::activation(x, activation)).collect()
            },
        );
    }
}

#[test]
fn vectors_of_length_one_match_their_definition() {
    let width = 37;
    let given = numbers(width, 1);
    let exact = |f: &dyn Fn(usize) -> f64| (0..width).map(f).collect::<Vec<f64>>();
    let x = wide(&given);
    let squares: f64 = x.iter().map(|x| x * x).sum();
    for isa in Isa::of_numbers() {
        let made = |make: &dyn Fn(&mut [f32])| {
            let mut values = given.clone();
            make(&mut values);
            values
        };
        let short = made(&|values| unit(isa, values, 1e-6, 0.5));
        let length = (squares + 1e-6).sqrt();
        assert_close(isa, "unit", &short, &exact(&|at| 0.5 * x[at] / length));
    }
}

#[test]
fn decays_match_their_definition() {
    let width = 37;
    let (biases, rates) = (numbers(width, 2), numbers(width, 4));
    let rates: Vec<f32> = rates.iter().map(|x| x + 1.5).collect();
    let large: Vec<f32> = numbers(width, 3).iter().map(|x| 30.0 * x).collect();
    let exact = |rule: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        let sums = large
            .iter()
            .zip(&biases)
            .map(|(x, bias)| f64::from(x + bias));
        sums.zip(&rates)
            .map(|(x, rate)| rule(x, f64::from(*rate)))
            .collect()
    };
    let bounded = Decay::Bounded { least: -5.0 };
    for isa in Isa::of_numbers() {
        let mut found = large.clone();
        decays(isa, &mut found, &biases, &rates, Decay::Softplus);
        let expected = exact(&|x, rate| (-rate * softplus(x)).exp());
        assert_close(isa, "softplus", &found, &expected);
        let mut found = large.clone();
        decays(isa, &mut found, &biases, &rates, bounded);
        let expected = exact(&|x, rate| (-5.0 * logistic(rate * x)).exp());
        assert_close(isa, "bounded", &found, &expected);
        let mut found = large.iter().map(|x| x / 20.0).collect::<Vec<_>>();
        let zeros = vec![0.0; width];
        decays(isa, &mut found, &zeros, &rates, Decay::Exponential);
        let pairs = large.iter().zip(&rates);
        let expected = pairs.map(|(x, rate)| (-f64::from(*rate) * f64::from(x / 20.0).exp()).exp());
        assert_close(isa, "exponential", &found, &expected.collect::<Vec<_>>());
    }
}

#[test]
fn gates_of_recurrent_units_match_their_definition() {
    let width = 37;
    let [given, input, fading, first, second] = [1, 2, 3, 4, 5].map(|seed| numbers(width, seed));
    let rates: Vec<f32> = numbers(width, 6).iter().map(|x| 4.0 * x - 4.0).collect();
    for begins in [false, true] {
        let gates = RglruGates {
            given: &given,
            biases: [&first, &second],
            rates: &rates,
            begins,
        };
        let exact = |at: usize| {
            let sum = |a: &[f32], b: &[f32]| f64::from(a[at]) + f64::from(b[at]);
            let exponent = logistic(sum(&fading, &second)) * f64::from(rates[at]);
            let portion = if begins {
                1.0
            } else {
                (-(2.0 * exponent).exp_m1()).sqrt()
            };
            let taken = f64::from(given[at]) * logistic(sum(&input, &first)) * portion;
            (taken, exponent.exp())
        };
        let (expected, expected_kept): (Vec<f64>, Vec<f64>) = (0..width).map(exact).unzip();
        for isa in Isa::of_numbers() {
            let (mut taken, mut kept) = (input.clone(), fading.clone());
            open_rglru(isa, &gates, &mut taken, &mut kept);
            assert_close(isa, "taken", &taken, &expected);
            assert_close(isa, "kept", &kept, &expected_kept);
        }
    }
}

#[test]
fn what_is_no_number_stays_none() {
    for isa in Isa::of_numbers() {
        let lane = MatrixLane {
            keys: 1,
            columns: 1,
            query: 0,
            key: 1,
            value: 2,
            rule: MatrixRule::Steps {
                time: 3,
                bias: 0.0,
                bounds: (0.0, f32::INFINITY),
                rate: -1.0,
                skip: 0.0,
            },
        };
        let inputs = [1.0, 1.0, 1.0, f32::NAN];
        let (mut state, mut out) = ([0.0], [0.0]);
        let rows = ScanRows {
            inputs: &inputs,
            width: 4,
        };
        matrix(isa, &lane, rows, &mut state, &mut out);
        assert!(state[0].is_nan() && out[0].is_nan(), "{}", isa.name());
        let mut values = [f32::NAN];
        decays(isa, &mut values, &[0.0], &[1.0], Decay::Softplus);
        assert!(values[0].is_nan(), "{}", isa.name());
    }
}
