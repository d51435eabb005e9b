use super::*;

fn grouped(most: u8, zero: f32, affine: bool) -> Grouped {
    let codes: Vec<u8> = (0..3 * 64u32)
        .map(|at| (at * 7 % (u32::from(most) + 1)) as u8)
        .collect();
    let groups = (0..6).map(|at| Group {
        scale: 0.25 + at as f32 / 64.0,
        zero,
        minimum: if affine { at as f32 - 2.5 } else { 0.0 },
    });
    Grouped {
        rows: 3,
        columns: 64,
        codes,
        levels: Levels::Codes,
        layout: Layout::Grid {
            rows: 1,
            columns: 32,
        },
        groups: groups.collect(),
        affine,
        factor: 1.0,
        rounding: Rounding::None,
    }
}

#[test]
fn blocks_have_the_same_numbers() {
    for (most, zero, affine, expected) in [
        (15, 8.0, false, BlockType::Q4_0),
        (15, 3.0, false, BlockType::Q5_0),
        (255, 128.0, false, BlockType::Q8_0),
        (15, 0.0, true, BlockType::Q4_1),
        (31, 0.0, true, BlockType::Q5_1),
    ] {
        let grouped = grouped(most, zero, affine);
        let blocks = grouped.blocks().unwrap().unwrap();
        assert_eq!(blocks.kind, expected);
        let found = base::quant::dequantize(blocks.kind, &blocks.bytes).unwrap();
        assert_eq!(found, grouped.dequantize().unwrap());
    }
}

/// The numbers of blocks, with the columns where they belong.
fn expanded(blocks: Blocks, shape: [usize; 2]) -> Vec<f32> {
    let tensor = QuantizedTensor {
        kind: blocks.kind,
        shape: shape.to_vec(),
        bytes: Bytes::unpacked(blocks.bytes),
        order: blocks.order,
        fp8_rows: false,
    };
    tensor.dequantize().unwrap()
}

fn assert_close(found: &[f32], wanted: &[f32]) {
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() <= 2e-6 * (1.0 + wanted.abs()));
    }
}

/// Groups of 64 columns with numbers that halves do not have.
fn fine(most: u8, affine: bool) -> Grouped {
    let mut grouped = grouped(most, 0.0, affine);
    grouped.layout = Layout::Grid {
        rows: 1,
        columns: 64,
    };
    grouped.groups = (0..3)
        .map(|at| Group {
            scale: 0.1 + at as f32 / 7.0,
            zero: 7.3,
            minimum: if affine { 0.3 } else { 0.0 },
        })
        .collect();
    grouped
}

#[test]
fn scales_that_are_no_halves_are_kept_too() {
    for (most, affine, expected) in [
        (15, false, BlockType::Int4),
        (3, true, BlockType::Int4),
        (200, false, BlockType::Int8),
        (63, true, BlockType::Int8),
    ] {
        let grouped = fine(most, affine);
        let blocks = grouped.blocks().unwrap().unwrap();
        assert_eq!(blocks.kind, expected);
        assert_close(&expanded(blocks, [3, 64]), &grouped.dequantize().unwrap());
    }
}

#[test]
fn tables_have_types_of_their_own() {
    for expected in [
        BlockType::Nf4,
        BlockType::Fp4,
        BlockType::Nf4Bf16,
        BlockType::Nf4F16,
        BlockType::Fp4Bf16,
        BlockType::Fp4F16,
        BlockType::NvFp4,
        BlockType::Fp8,
        BlockType::E5m2,
    ] {
        let form = GroupForm::of(expected).unwrap();
        let mut grouped = fine(if form.bits == 4 { 15 } else { 120 }, false);
        grouped.levels = Levels::Table(Box::new(*form.levels()));
        grouped.rounding = form.rounding;
        grouped.layout = Layout::Grid {
            rows: 1,
            columns: form.run,
        };
        let count = 3 * 64 / form.run;
        let groups = (0..count).map(|at| Group::scaled(0.1 + at as f32 / 7.0));
        grouped.groups = groups.collect();
        let blocks = grouped.blocks().unwrap().unwrap();
        assert_eq!(blocks.kind, expected);
        assert_eq!(expanded(blocks, [3, 64]), grouped.dequantize().unwrap());
        if expected == BlockType::Fp8 {
            grouped.codes[7] = 0xff;
            let Levels::Table(table) = &mut grouped.levels else {
                panic!("a table");
            };
            table[0xff] = f32::NAN;
            assert!(grouped.blocks().unwrap().is_none());
        }
    }
}

#[test]
fn rounded_numbers_other_than_those_of_tables_are_expanded() {
    let mut codes = fine(15, false);
    codes.rounding = Rounding::Bf16;
    assert!(codes.blocks().unwrap().is_none());
    let form = GroupForm::of(BlockType::NvFp4).unwrap();
    codes.levels = Levels::Table(Box::new(*form.levels()));
    codes.groups = vec![Group::scaled(0.1); 3];
    assert!(codes.blocks().unwrap().is_none());
}

#[test]
fn columns_of_a_group_are_put_side_by_side() {
    let mut shuffled = grouped(15, 8.0, false);
    let of = (0..64).map(|column| (column * 5 / 2) % 2).collect();
    shuffled.layout = Layout::Columns { of, count: 2 };
    let blocks = shuffled.blocks().unwrap().unwrap();
    assert_eq!(blocks.kind, BlockType::Q4_0);
    assert!(blocks.order.is_some());
    assert_eq!(expanded(blocks, [3, 64]), shuffled.dequantize().unwrap());
    // Groups of 63 columns and one.
    let of = (0..64).map(|column| u32::from(column == 5)).collect();
    shuffled.layout = Layout::Columns { of, count: 2 };
    assert!(shuffled.blocks().unwrap().is_none());
}

#[test]
fn groups_of_32_have_scales_of_their_own() {
    for (most, kind) in [(15, BlockType::Int4Of32), (200, BlockType::Int8Of32)] {
        for affine in [false, true] {
            let mut fine = grouped(most, 8.0, affine);
            fine.groups[1].scale = 0.1;
            let blocks = fine.blocks().unwrap().unwrap();
            assert_eq!(blocks.kind, kind);
            assert_close(&expanded(blocks, [3, 64]), &fine.dequantize().unwrap());
        }
    }
}

#[test]
fn groups_of_16_have_scales_of_their_own() {
    for (most, kind) in [(15, BlockType::Int4Of16), (200, BlockType::Int8Of16)] {
        let mut fine = grouped(most, 8.0, true);
        fine.layout = Layout::Run(16);
        fine.groups = (0..12)
            .map(|at| Group {
                scale: 0.1 + at as f32 / 7.0,
                zero: 2.5,
                minimum: at as f32 / 3.0,
            })
            .collect();
        let blocks = fine.blocks().unwrap().unwrap();
        assert_eq!(blocks.kind, kind);
        assert_close(&expanded(blocks, [3, 64]), &fine.dequantize().unwrap());
    }
}

#[test]
fn rows_may_end_within_a_block() {
    for (columns, width, kind) in [
        (48, 48, BlockType::Int4),
        (48, 16, BlockType::Int4Of16),
        (36, 32, BlockType::Int4Of32),
    ] {
        let mut cut = fine(15, true);
        (cut.rows, cut.columns) = (64, columns);
        cut.codes = (0..64 * columns).map(|at| (at * 7 % 16) as u8).collect();
        cut.layout = Layout::Grid {
            rows: 1,
            columns: width,
        };
        let of_row = columns.div_ceil(width);
        cut.groups = (0..64 * of_row)
            .map(|at| Group {
                scale: 0.1 + (at % 7) as f32 / 70.0,
                zero: 7.3,
                minimum: 0.3,
            })
            .collect();
        let blocks = cut.blocks().unwrap().unwrap();
        assert_eq!(blocks.kind, kind);
        let found = expanded(blocks, [64, columns]);
        assert_close(&found, &cut.dequantize().unwrap());
    }
}

#[test]
fn scales_of_columns_are_kept_as_lines() {
    let mut lined = grouped(15, 0.0, true);
    (lined.rows, lined.columns) = (48, 4);
    lined.layout = Layout::Lines(3);
    lined.groups = (0..12)
        .map(|at| Group {
            scale: 0.1 + at as f32 / 7.0,
            zero: 7.3,
            minimum: 0.0,
        })
        .collect();
    let wanted = lined.dequantize().unwrap();
    // Row 4 is of the second line.
    assert_eq!(lined.group_at(4, 2), lined.groups[6]);
    assert!(lined.blocks().unwrap().is_none());
    let found = lined.lined().unwrap();
    assert!(found.is_whole() && found.bits == 4);
    assert_close(&found.dequantize(), &wanted);
    assert!(grouped(15, 0.0, true).lined().is_none());
}

#[test]
fn numbers_that_no_block_type_has_are_expanded() {
    let mut short = grouped(15, 8.0, false);
    short.layout = Layout::Grid {
        rows: 1,
        columns: 8,
    };
    short.groups = vec![Group::scaled(0.5); 24];
    assert!(short.blocks().unwrap().is_none());
    // Groups that go on in the next row.
    short.layout = Layout::Run(48);
    (short.rows, short.columns) = (8, 24);
    short.groups = vec![Group::scaled(0.1); 4];
    assert!(short.blocks().unwrap().is_none());
}
