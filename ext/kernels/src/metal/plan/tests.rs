use super::*;
use crate::scan::launch;
use candle_core::Shape;

/// Fields of a struct of the Metal sources, in order.
fn metal_fields(source: Source, name: &str) -> Vec<(String, String)> {
    let text = source.text();
    let start = text.find(&format!("struct {name} {{")).expect(name);
    let body = &text[start..start + text[start..].find("};").expect(name)];
    body.lines()
        .skip(1)
        .filter_map(|line| line.split("//").next())
        .filter_map(|line| line.trim().trim_end_matches(';').split_once(' '))
        .map(|(kind, field)| {
            let kind = match kind {
                "uint" => "u32",
                "float" => "f32",
                "int" => "i32",
                other => other,
            };
            (field.to_string(), kind.to_string())
        })
        .collect()
}

#[test]
fn parameter_blocks_have_the_fields_of_the_metal_structs() {
    let blocks = [
        (Source::Norm, "RowStarts", RowStarts::FIELDS),
        (Source::Norm, "NormParameters", NormParameters::FIELDS),
        (
            Source::Softmax,
            "SoftmaxParameters",
            SoftmaxParameters::FIELDS,
        ),
        (
            Source::Activation,
            "ActivationParameters",
            ActivationParameters::FIELDS,
        ),
        (
            Source::Activation,
            "PointwiseParameters",
            PointwiseParameters::FIELDS,
        ),
        (Source::Rope, "RopeParameters", RopeParameters::FIELDS),
        (
            Source::Rope,
            "RopeStoreParameters",
            RopeStoreParameters::FIELDS,
        ),
        (
            Source::Largest,
            "LargestParameters",
            LargestParameters::FIELDS,
        ),
        (
            Source::Sampling,
            "SamplingParameters",
            SamplingParameters::FIELDS,
        ),
        (
            Source::Product(ProductSource {
                formats: product::Formats::One(product::Format::Dense),
                dtype: DType::F32,
                tiles: product::Tiles::of(Gpu::Base),
            }),
            "ProductParameters",
            ProductParameters::FIELDS,
        ),
        (Source::Pooling, "PoolParameters", PoolParameters::FIELDS),
        (Source::Pooling, "L2Parameters", L2Parameters::FIELDS),
        (
            Source::Blocks(BlockType::Q4K),
            "BlockParameters",
            BlockParameters::FIELDS,
        ),
        (Source::Heads, "HeadParameters", HeadParameters::FIELDS),
        (
            Source::Scan(ScanSource::Channels),
            "ScanParameters",
            launch::ScanParameters::FIELDS,
        ),
        (
            Source::ScanGates,
            "GateParameters",
            launch::GateParameters::FIELDS,
        ),
        (
            Source::ScanGates,
            "UnitParameters",
            launch::UnitParameters::FIELDS,
        ),
        (
            Source::Attention(HeadWidths::of(64, 64)),
            "AttentionParameters",
            AttentionParameters::FIELDS,
        ),
    ];
    for (source, name, fields) in blocks {
        let ours: Vec<(String, String)> = fields
            .iter()
            .map(|(field, kind)| (field.to_string(), kind.to_string()))
            .collect();
        assert_eq!(ours, metal_fields(source, name), "{name}");
    }
    assert_eq!(std::mem::size_of::<SoftmaxParameters>(), 3 * 4 + 4 * 20);
}

#[test]
fn constants_are_those_of_the_metal_sources() {
    let constants = [
        ("ALIGNED", ALIGNED as usize),
        ("HAS_WEIGHT", HAS_WEIGHT as usize),
        ("HAS_BIAS", HAS_BIAS as usize),
        ("HAS_ADDITIVE", HAS_ADDITIVE as usize),
        ("HAS_BOOLEAN", HAS_BOOLEAN as usize),
        ("HAS_LENGTHS", HAS_LENGTHS as usize),
        ("INTERLEAVED", INTERLEAVED as usize),
        ("IS_GATED", IS_GATED as usize),
        ("HAS_RESIDUAL", HAS_RESIDUAL as usize),
        ("MAXIMUM_SIMDGROUPS", MAXIMUM_LANES / SIMD_WIDTH),
        ("POOL_SIMDGROUPS", POOL_LANES / SIMD_WIDTH),
        ("POOL_LANES", SIMD_WIDTH),
    ];
    for (name, value) in constants {
        let line = format!("constant constexpr uint {name} = {value};");
        assert!(Source::Pooling.text().contains(&line), "{line}");
    }
    assert_eq!(POOL_COLUMNS, VECTOR * SIMD_WIDTH);
    for (name, value) in [("SIDE", HEAD_SIDE), ("HEAD_LANES", HEAD_LANES)] {
        let line = format!("constant constexpr uint {name} = {value};");
        assert!(Source::Heads.text().contains(&line), "{line}");
    }
}

#[test]
fn blocks_have_the_sizes_of_the_metal_structs() {
    for kind in BlockType::every() {
        let text = Source::Blocks(kind).text();
        assert!(text.ends_with(&format!("TABLE_KERNELS({}, {kind:?})\n", kind.name())));
        let sizes = format!(
            "struct {kind:?} {{\n    enum : uint {{ ELEMENTS = {}, BYTES = {} }};\n",
            kind.elements(),
            kind.bytes()
        );
        assert!(text.contains(&sizes), "{sizes}");
        assert!(kind.bytes().is_multiple_of(2) && kind.elements().is_multiple_of(32));
    }
}

fn layout(dims: &[usize], strides: &[usize], start: usize) -> Layout {
    Layout::new(Shape::from(dims.to_vec()), strides.to_vec(), start)
}

/// Where the kernels look for a row, as `row_start` of `common.metal` computes it.
fn row_start(starts: &RowStarts, row: u32) -> u32 {
    let (inner, rest) = (row % starts.inner_size, row / starts.inner_size);
    let (middle, outer) = (rest % starts.middle_size, rest / starts.middle_size);
    outer * starts.outer_stride + middle * starts.middle_stride + inner * starts.inner_stride
}

#[test]
fn kernels_find_every_row_of_a_strided_layout() {
    let rows = rows_of("test", &layout(&[3, 4, 2, 6], &[200, 12, 48, 1], 5)).expect("rows");
    let starts = RowStarts::of(&rows).expect("starts");
    assert_eq!(rows.count, 24);
    for row in 0..24 {
        let (a, b, c) = (row / 8, row / 2 % 4, row % 2);
        assert_eq!(row_start(&starts, row), a * 200 + b * 12 + c * 48);
    }
}

#[test]
fn kernels_find_the_token_of_a_head() {
    let starts = RowStarts::per_token(5, 3).expect("starts");
    let tokens: Vec<u32> = (0..15).map(|row| row_start(&starts, row)).collect();
    assert_eq!(tokens, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]);
}

#[test]
fn empty_dimensions_divide_nothing_by_zero() {
    let rows = rows_of("test", &layout(&[0, 7, 8], &[56, 8, 1], 0)).expect("rows");
    let starts = RowStarts::of(&rows).expect("starts");
    assert!(starts.inner_size > 0 && starts.middle_size > 0);
    assert!(RowStarts::per_token(0, 0).expect("starts").inner_size > 0);
}

#[test]
fn a_layout_without_rows_is_refused_by_name() {
    let error = rows_of("softmax", &layout(&[3, 8], &[1, 3], 0)).unwrap_err();
    assert!(error.to_string().contains("softmax"), "{error}");
}

#[test]
fn alignment_needs_offset_and_strides() {
    let aligned = |stride, start| {
        is_aligned(&rows_of("test", &layout(&[3, 8], &[stride, 1], start)).expect("rows"))
    };
    assert!(aligned(8, 0) && aligned(12, 4));
    assert!(!aligned(9, 0) && !aligned(8, 2));
    assert!(output_is_aligned(1, 7) && output_is_aligned(3, 8) && !output_is_aligned(3, 7));
}

#[test]
fn dense_rows_flatten_and_strided_ones_do_not() {
    let flat = |strides: &[usize]| {
        let rows = flattened(rows_of("gelu", &layout(&[5, 3], strides, 0)).expect("rows"));
        (rows.count, rows.width)
    };
    assert_eq!(flat(&[3, 1]), (1, 15));
    assert_eq!(flat(&[4, 1]), (5, 3));
    let empty = rows_of("gelu", &layout(&[0, 3], &[3, 1], 0)).expect("rows");
    assert_eq!(flattened(empty).count, 0);
}

#[test]
fn threadgroups_follow_the_row_width() {
    let lanes = |columns| row_lanes(columns, 1024);
    assert_eq!(
        [
            lanes(1),
            lanes(256),
            lanes(257),
            lanes(768),
            lanes(4096),
            lanes(65_536)
        ],
        [32, 32, 64, 96, 512, 1024]
    );
    assert_eq!(row_lanes(65_536, 448), 448);
    assert_eq!(row_lanes(65_536, 500), 480);
    assert_eq!(
        [0, 16, 33, 300].map(|lanes| elementwise_lanes(lanes, 1024)),
        [32, 32, 64, 256]
    );
    assert_eq!(elementwise_lanes(300, 64), 64);
    assert_eq!(rope_lanes(128, 128), 16);
    assert_eq!(rope_lanes(127, 50), 7 + 20);
}

#[test]
fn kernels_have_the_suffix_of_the_type() {
    assert_eq!(
        kernel_name("softmax", DType::BF16).expect("a name"),
        "softmax_bf16"
    );
    assert!(kernel_name("softmax", DType::U8).is_err());
}
