//! On the CPU a row's results depend on the row alone, bit for bit: not on how many rows are computed with
//! it, nor on which, nor on the pieces that a text is read in.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use engine::models::decoder::model::Logits;
use engine::models::{decoder, encoder};
use engine::nn::{attention, AttentionKind, AttentionOptions, Linear, PackedSequences};
use engine::{CancelToken, Result};
use formats::files::model_files::WeightFiles;
use formats::files::raw_config::RawConfig;
use formats::weights;
use kernels::{self, Activation, ClampedGlu, Isa, Pointwise, RopeKind, Xielu};

use crate::decoder::{folders, Expectations};
use crate::tiny_folder::tiny;

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Numbers in -1..1 that a seed repeats.
fn tensor(seed: u64, shape: &[usize], dtype: DType) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let values: Vec<f32> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
    .take(shape.iter().product())
    .collect();
    let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
    tensor.to_dtype(dtype).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    let wide = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
    let values: Vec<f64> = wide.to_vec1().unwrap();
    assert!(values.iter().all(|value| value.is_finite()));
    values.into_iter().map(f64::to_bits).collect()
}

/// Whether the rows of `whole` are those that `part` makes of each piece of so many rows.
fn same_in_pieces(
    whole: &Tensor,
    pieces: &[usize],
    part: impl Fn(usize, usize) -> Result<Tensor>,
) -> bool {
    let rows = whole.dim(0).unwrap();
    let (mut first, mut pieces) = (0, pieces.iter().cycle());
    while first < rows {
        let count = (rows - first).min(*pieces.next().unwrap());
        let piece = part(first, count).unwrap();
        if bits(&piece) != bits(&whole.narrow(0, first, count).unwrap()) {
            return false;
        }
        first += count;
    }
    true
}

#[test]
fn kernels_on_rows() {
    let (rows, width) = (37, 45);
    for dtype in DTYPES {
        let x = tensor(1, &[rows, width], dtype);
        let other = tensor(2, &[rows, width], dtype);
        let [weight, bias] = [3, 4].map(|seed| tensor(seed, &[width], dtype));
        let cut = |t: &Tensor, first, count| -> Tensor {
            t.narrow(0, first, count)
                .unwrap()
                .force_contiguous()
                .unwrap()
        };
        type Kernel<'a> = Box<dyn Fn(&Tensor, &Tensor) -> Result<Tensor> + 'a>;
        let both = |sum: Result<(Tensor, Tensor)>| -> Result<Tensor> {
            let (sum, normed) = sum?;
            Ok(Tensor::cat(&[sum, normed], 1)?)
        };
        let mut cases: Vec<(&str, Kernel<'_>)> = vec![
            (
                "layer_norm",
                Box::new(|x, _| kernels::layer_norm(x, &weight, Some(&bias), 1e-5)),
            ),
            (
                "rms_norm",
                Box::new(|x, _| kernels::rms_norm(x, &weight, 1e-5)),
            ),
            (
                "add_layer_norm",
                Box::new(|x, y| {
                    both(kernels::add_layer_norm(
                        x.copy()?,
                        y,
                        &weight,
                        Some(&bias),
                        1e-5,
                    ))
                }),
            ),
            (
                "add_rms_norm",
                Box::new(|x, y| both(kernels::add_rms_norm(x.copy()?, y, &weight, 1e-5, 1.0))),
            ),
            ("softmax", Box::new(|x, _| kernels::softmax(x))),
            ("l2_normalize", Box::new(|x, _| kernels::l2_normalize(x))),
        ];
        let activations = [
            Activation::Gelu,
            Activation::GeluTanh,
            Activation::QuickGelu,
            Activation::Silu,
            Activation::Tanh,
            Activation::Sigmoid,
        ];
        for activation in activations {
            cases.push((
                "activate",
                Box::new(move |x, _| kernels::activate(x, activation)),
            ));
            cases.push((
                "gated",
                Box::new(move |x, y| kernels::gated(x, y, activation)),
            ));
        }
        let xielu = Pointwise::Xielu(Xielu {
            positive: 0.8,
            negative: 1.3,
            linear: 0.5,
            most: -1e-6,
        });
        let glu = ClampedGlu {
            limit: 0.8,
            alpha: 1.702,
        };
        cases.push(("xielu", Box::new(move |x, _| kernels::pointwise(x, xielu))));
        cases.push((
            "clamped_glu",
            Box::new(move |x, y| kernels::clamped_glu(x, y, glu)),
        ));
        for &isa in Isa::available() {
            for (name, kernel) in &cases {
                isa.force(|| {
                    let whole = kernel(&x, &other).unwrap();
                    let part =
                        |first, count| kernel(&cut(&x, first, count), &cut(&other, first, count));
                    let same = same_in_pieces(&whole, &[1, 2, 5], part);
                    assert!(same, "{name} of {dtype:?} on {}", isa.name());
                });
            }
        }
    }
}

#[test]
fn rotary_positions_and_means() {
    let (tokens, heads, width) = (23, 3, 20);
    let (cosines, sines) = (
        tensor(1, &[40, 8], DType::F32),
        tensor(2, &[40, 8], DType::F32),
    );
    let positions: Vec<u32> = (0..tokens as u32).map(|at| at * 7 % 40).collect();
    let positions = Tensor::from_vec(positions, tokens, &Device::Cpu).unwrap();
    for dtype in DTYPES {
        let x = tensor(3, &[tokens, heads, width], dtype);
        for &isa in Isa::available() {
            for kind in [RopeKind::Half, RopeKind::Interleaved] {
                let rotated = |first, count| {
                    let at = |t: &Tensor| t.narrow(0, first, count).unwrap();
                    kernels::rope(&at(&x), &cosines, &sines, &at(&positions), kind, 16)
                };
                isa.force(|| {
                    let whole = rotated(0, tokens).unwrap();
                    let same = same_in_pieces(&whole, &[1, 4], rotated);
                    assert!(same, "rope of {dtype:?} on {}", isa.name());
                });
            }
            let rows = x.flatten_from(1).unwrap();
            isa.force(|| {
                let boundaries = [0u32, 1, 9, 9, 23];
                let whole = kernels::mean_pool(&rows, &boundaries).unwrap();
                let alone = |sequence: usize, _| {
                    let (first, end) = (boundaries[sequence], boundaries[sequence + 1]);
                    let rows = rows.narrow(0, first as usize, (end - first) as usize)?;
                    kernels::mean_pool(&rows, &[0, end - first])
                };
                let same = same_in_pieces(&whole, &[1], alone);
                assert!(same, "mean_pool of {dtype:?} on {}", isa.name());
            });
        }
    }
}

#[test]
fn linear_layers_of_every_kind() {
    let (rows, inputs, outputs) = (70, 90, 75);
    for dtype in DTYPES {
        let (x, weight) = (
            tensor(1, &[rows, inputs], dtype),
            tensor(2, &[outputs, inputs], dtype),
        );
        let bias = tensor(3, &[outputs], dtype);
        let mut layers = vec![
            Linear::new(weight.clone(), Some(bias.clone())).unwrap(),
            Linear::shared(weight.clone(), Some(bias.clone())).unwrap(),
        ];
        if dtype == DType::F32 {
            layers.push(Linear::bytes(weight, Some(bias)).unwrap());
        }
        for &isa in Isa::available() {
            for (number, layer) in layers.iter().enumerate() {
                isa.force(|| {
                    let whole = layer.forward(&x).unwrap();
                    let part = |first, count| layer.forward(&x.narrow(0, first, count)?);
                    let same = same_in_pieces(&whole, &[1, 2, 3, 7, 33], part);
                    assert!(same, "layer {number} of {dtype:?} on {}", isa.name());
                });
            }
        }
    }
}

#[test]
fn a_shared_weight_multiplies_as_one_of_its_own() {
    for dtype in DTYPES {
        let (x, weight) = (tensor(1, &[5, 90], dtype), tensor(2, &[75, 90], dtype));
        let bias = tensor(3, &[75], dtype);
        let [shared, own] = [Linear::shared, Linear::new].map(|make| {
            let layer = make(weight.clone(), Some(bias.clone())).unwrap();
            let product = layer.forward(&x).unwrap().to_dtype(DType::F32).unwrap();
            product.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        });
        let tolerance = if dtype == DType::F32 { 1e-4 } else { 0.1 };
        let close = shared
            .iter()
            .zip(&own)
            .all(|(a, b)| (a - b).abs() < tolerance);
        assert!(close, "{dtype:?}");
    }
}

/// The queries of a text whose keys are all there, read in pieces as a cache makes them, with other texts
/// beside it.
fn attended(
    inputs: &[Tensor; 3],
    options: &AttentionOptions<'_>,
    first: usize,
    count: usize,
    mates: &[usize],
) -> Tensor {
    let [q, k, v] = inputs;
    let end = first + count;
    let (mut queries, mut keys, mut values) = (
        vec![q.narrow(0, first, count).unwrap()],
        vec![k.narrow(0, 0, end).unwrap()],
        vec![v.narrow(0, 0, end).unwrap()],
    );
    let (mut query_ends, mut key_ends) = (vec![0, count as u32], vec![0, end as u32]);
    for &length in mates {
        queries.push(q.narrow(0, 3, length).unwrap());
        keys.push(k.narrow(0, 0, 2 * length).unwrap());
        values.push(v.narrow(0, 0, 2 * length).unwrap());
        query_ends.push(query_ends.last().unwrap() + length as u32);
        key_ends.push(key_ends.last().unwrap() + 2 * length as u32);
    }
    let [q, k, v] = [queries, keys, values].map(|parts| Tensor::cat(&parts, 0).unwrap());
    let out = attention(&q, &k, &v, &query_ends, &key_ends, options).unwrap();
    out.narrow(0, 0, count).unwrap()
}

#[test]
fn attention_of_a_query_in_any_piece_and_beside_any_text() {
    let tokens = 60;
    let cases = [
        (AttentionKind::Causal, None),
        (AttentionKind::Window { left: 20, right: 0 }, Some(3.0)),
    ];
    let pieces: [(&[usize], &[usize]); 4] = [
        (&[1], &[]),
        (&[2, 3, 4], &[2]),
        (&[5, 33, 1], &[]),
        (&[48, 3], &[9, 1]),
    ];
    for (heads, key_heads, width, value_width) in [(4, 2, 64, 64), (3, 1, 33, 40), (2, 2, 6, 5)] {
        for dtype in DTYPES {
            let inputs = [
                tensor(1, &[tokens, heads, width], dtype),
                tensor(2, &[tokens, key_heads, width], dtype),
                tensor(3, &[tokens, key_heads, value_width], dtype),
            ];
            for (kind, soft_cap) in cases {
                let options = AttentionOptions {
                    soft_cap,
                    ..AttentionOptions::new(kind, 0.3)
                };
                for &isa in Isa::available() {
                    isa.force(|| {
                        let whole = attended(&inputs, &options, 0, tokens, &[]);
                        for (pieces, mates) in pieces {
                            let part =
                                |first, count| Ok(attended(&inputs, &options, first, count, mates));
                            let same = same_in_pieces(&whole, pieces, part);
                            let on = isa.name();
                            assert!(same, "{width} {kind:?} {dtype:?} {pieces:?} on {on}");
                        }
                    });
                }
            }
        }
    }
}

#[test]
fn logits_of_every_decoder_whole_and_in_pieces() {
    for folder in folders("decoders") {
        for dtype in [DType::F32, DType::BF16] {
            let decoder = load_decoder(&folder, dtype);
            let sequences = Expectations::read(&folder).sequences;
            let tokens = sequences.iter().max_by_key(|tokens| tokens.len()).unwrap();
            let cancel = CancelToken::new();
            let mut cache = decoder.new_cache().unwrap();
            let whole = decoder.forward(tokens, &mut cache, Logits::All, &cancel);
            let whole = whole.unwrap();
            if decoder.rope_variant(1) != decoder.rope_variant(tokens.len()) {
                continue; // A cache of the short rotation is void for the long one.
            }
            for pieces in [&[1][..], &[3, 1, 4], &[5, 2]] {
                let cache = std::cell::RefCell::new(decoder.new_cache().unwrap());
                let part = |first: usize, count: usize| {
                    let tokens = &tokens[first..first + count];
                    decoder.forward(tokens, &mut cache.borrow_mut(), Logits::All, &cancel)
                };
                let same = same_in_pieces(&whole, pieces, part);
                assert!(same, "{} of {dtype:?} in {pieces:?}", folder.display());
            }
        }
    }
}

fn load_decoder(folder: &Path, dtype: DType) -> decoder::Decoder {
    let raw = RawConfig::read(&folder.join("config.json")).unwrap();
    let source = weights::open(&WeightFiles::Safetensors(vec![
        folder.join("model.safetensors")
    ]));
    let blueprint = decoder::Blueprint::from_config(&raw).unwrap();
    let (source, cancel) = (source.unwrap(), CancelToken::new());
    decoder::Decoder::load(&blueprint, source.as_ref(), &Device::Cpu, dtype, &cancel).unwrap()
}

#[test]
fn states_of_every_encoder_alone_and_beside_others() {
    let families = [
        "albert",
        "bert",
        "deberta",
        "deberta-v2",
        "deberta-v2-conv",
        "distilbert",
        "electra",
        "gte",
        "jina-bert",
        "jina-bert-code",
        "modernbert",
        "mpnet",
        "nomic-bert",
        "roberta",
        "xlm-roberta",
    ];
    let texts: Vec<Vec<u32>> = [5, 1, 17, 2, 30, 3]
        .iter()
        .map(|&length| (0..length).map(|at| 5 + (at * 7 + length) % 40).collect())
        .collect();
    for isa in [Isa::current().unwrap(), Isa::Scalar] {
        for name in families {
            for (dtype, int8) in [
                (DType::F32, false),
                (DType::F32, true),
                (DType::BF16, false),
                (DType::BF16, true),
                (DType::F16, false),
            ] {
                isa.force(|| {
                    let encoder = load_encoder(name, dtype, int8);
                    let states = |texts: &[&Vec<u32>]| {
                        let mut sequences = PackedSequences::new();
                        for ids in texts {
                            sequences.push(ids, None).unwrap();
                        }
                        encoder.forward(&sequences, &CancelToken::new()).unwrap()
                    };
                    let together = states(&texts.iter().collect::<Vec<_>>());
                    assert_eq!(together.dtype(), dtype);
                    let mut first = 0;
                    for text in &texts {
                        let own = together.narrow(0, first, text.len()).unwrap();
                        let same = bits(&own) == bits(&states(&[text]));
                        assert!(same, "{name} {dtype:?} {int8} on {}", isa.name());
                        first += text.len();
                    }
                });
            }
        }
    }
}

fn load_encoder(name: &str, dtype: DType, int8: bool) -> encoder::Encoder {
    let raw = RawConfig::read(&tiny(name).join("config.json")).unwrap();
    let files = WeightFiles::Safetensors(vec![tiny(name).join("model.safetensors")]);
    let blueprint = encoder::Blueprint::from_config(&raw).unwrap();
    let (source, cancel) = (weights::open(&files).unwrap(), CancelToken::new());
    encoder::Encoder::load(
        &blueprint,
        source.as_ref(),
        &Device::Cpu,
        dtype,
        int8,
        &cancel,
    )
    .unwrap()
}
