//! What a Metal launch needs that takes no Metal device to work out: sources, kernel names, parameter
//! blocks, row geometry and threadgroup sizes. Compiled for tests on every platform.

use candle_core::{bail, DType, Layout, Result};

/// Bits of the `flags` field of a parameter block, as in `common.metal`.
pub const ALIGNED: u32 = 1;
pub const HAS_WEIGHT: u32 = 2;
pub const HAS_BIAS: u32 = 4;
pub const HAS_ADDITIVE: u32 = 8;
pub const HAS_BOOLEAN: u32 = 16;
pub const HAS_LENGTHS: u32 = 32;
pub const INTERLEAVED: u32 = 64;
pub const IS_GATED: u32 = 128;

/// Elements a lane loads at once.
pub const VECTOR: usize = 4;
const SIMD_WIDTH: usize = 32;
const MAXIMUM_LANES: usize = 1024;
/// `float4` vectors a lane of a row kernel works on, where the row is short enough.
const VECTORS_PER_LANE: usize = 2;
/// Lanes of an elementwise threadgroup.
pub const ELEMENTWISE_LANES: usize = 256;
/// Lanes and columns of a pooling threadgroup, as in `pooling.metal`.
pub const POOL_LANES: usize = 256;
pub const POOL_COLUMNS: usize = 128;

/// The sources, each a library of its own so that the first use compiles only what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    Norm,
    Softmax,
    Activation,
    Rope,
    Pooling,
}

impl Source {
    pub fn text(self) -> &'static str {
        macro_rules! with_common {
            ($file:literal) => {
                concat!(include_str!("common.metal"), include_str!($file))
            };
        }
        match self {
            Source::Norm => with_common!("norm.metal"),
            Source::Softmax => with_common!("softmax.metal"),
            Source::Activation => with_common!("activation.metal"),
            Source::Rope => with_common!("rope.metal"),
            Source::Pooling => with_common!("pooling.metal"),
        }
    }
}

pub fn kernel_name(kernel: &str, dtype: DType) -> Result<String> {
    let suffix = match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        other => bail!("{kernel}: the Metal kernels take f32, f16 and bf16, not {other:?}"),
    };
    Ok(format!("{kernel}_{suffix}"))
}

/// Declares a parameter block and remembers its fields, which a test compares with the Metal source.
macro_rules! parameter_block {
    ($(#[$attribute:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$attribute])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name { $(pub $field: $type,)* }

        impl $name {
            #[cfg(test)]
            const FIELDS: &'static [(&'static str, &'static str)] = &[$((stringify!($field), stringify!($type)),)*];
        }
    };
}

parameter_block! {
    /// Where each row of a tensor starts: up to three leading dimensions, strides in elements.
    Rows {
        inner_size: u32,
        middle_size: u32,
        inner_stride: u32,
        middle_stride: u32,
        outer_stride: u32,
    }
}

parameter_block! {
    NormParameters {
        columns: u32,
        flags: u32,
        epsilon: f32,
        weight_offset: f32,
        input: Rows,
        residual: Rows,
    }
}

parameter_block! {
    SoftmaxParameters {
        columns: u32,
        flags: u32,
        scale: f32,
        input: Rows,
        additive: Rows,
        boolean: Rows,
        lengths: Rows,
    }
}

parameter_block! {
    ActivationParameters {
        columns: u32,
        flags: u32,
        gate: Rows,
        up: Rows,
    }
}

parameter_block! {
    RopeParameters {
        columns: u32,
        rotated: u32,
        flags: u32,
        input: Rows,
        positions: Rows,
    }
}

parameter_block! {
    PoolParameters {
        columns: u32,
        flags: u32,
        row_stride: u32,
    }
}

parameter_block! {
    L2Parameters {
        columns: u32,
        flags: u32,
        epsilon: f32,
        input: Rows,
    }
}

impl Rows {
    /// One row, at the start.
    pub const SINGLE: Rows = Rows {
        inner_size: 1,
        middle_size: 1,
        inner_stride: 0,
        middle_stride: 0,
        outer_stride: 0,
    };

    /// Rows along `dims`, which are all dimensions but the one a row runs along. Dimensions that
    /// continue one another are merged; more than three that do not are refused.
    pub fn along(dims: &[usize], strides: &[usize]) -> Result<Rows> {
        let mut groups: Vec<(usize, usize)> = Vec::with_capacity(3);
        for (&size, &stride) in dims.iter().zip(strides).rev() {
            if size == 1 {
                continue;
            }
            match groups.last_mut() {
                Some((inner_size, inner_stride)) if stride == *inner_stride * *inner_size => {
                    *inner_size *= size;
                }
                _ => groups.push((size, stride)),
            }
        }
        if groups.len() > 3 {
            bail!("the leading dimensions {dims:?} with strides {strides:?} do not reduce to three; call contiguous() first");
        }
        groups.resize(3, (1, 0));
        Ok(Rows {
            inner_size: narrow(groups[0].0.max(1))?,
            middle_size: narrow(groups[1].0.max(1))?,
            inner_stride: narrow(groups[0].1)?,
            middle_stride: narrow(groups[1].1)?,
            outer_stride: narrow(groups[2].1)?,
        })
    }

    fn is_aligned(&self) -> bool {
        [self.inner_stride, self.middle_stride, self.outer_stride]
            .iter()
            .all(|stride| *stride as usize % VECTOR == 0)
    }
}

/// A tensor as rows along its dense last dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowView {
    pub rows: Rows,
    pub count: usize,
    pub columns: usize,
    /// Whether every row starts where four elements may be loaded at once.
    pub aligned: bool,
}

impl RowView {
    pub fn of(kernel: &str, layout: &Layout) -> Result<RowView> {
        let (dims, strides) = (layout.dims(), layout.stride());
        let (Some((&columns, outer)), Some((&stride, outer_strides))) =
            (dims.split_last(), strides.split_last())
        else {
            bail!("{kernel}: a scalar has no rows")
        };
        if columns > 1 && stride != 1 {
            bail!("{kernel}: the last dimension of {dims:?} has stride {stride}; call contiguous() first");
        }
        narrow(columns)?;
        let rows = Rows::along(outer, outer_strides)?;
        let count = outer.iter().product();
        narrow(count)?;
        Ok(RowView {
            rows,
            count,
            columns,
            aligned: rows.is_aligned() && layout.start_offset() % VECTOR == 0,
        })
    }

    /// The same elements as one row where they are contiguous: elementwise kernels then work on whole
    /// threadgroups even if rows are short.
    pub fn flattened(self, layout: &Layout) -> RowView {
        let elements = self.count * self.columns;
        if !layout.is_contiguous() || narrow(elements).is_err() {
            return self;
        }
        RowView {
            rows: Rows::SINGLE,
            count: 1,
            columns: elements,
            aligned: layout.start_offset() % VECTOR == 0,
        }
    }

    /// Whether the rows of a contiguous output of this size may be stored four elements at once.
    pub fn output_aligned(&self) -> bool {
        self.count <= 1 || self.columns % VECTOR == 0
    }
}

/// Lanes of the threadgroup that works on one row: whole simdgroups, about two vectors per lane.
pub fn row_lanes(columns: usize, pipeline_maximum: usize) -> usize {
    let maximum = (pipeline_maximum.min(MAXIMUM_LANES) / SIMD_WIDTH * SIMD_WIDTH).max(SIMD_WIDTH);
    columns
        .div_ceil(VECTOR * VECTORS_PER_LANE)
        .next_multiple_of(SIMD_WIDTH)
        .clamp(SIMD_WIDTH, maximum)
}

/// Lanes along a row of the rope kernel: four pairs or four copied elements each.
pub fn rope_lanes(columns: usize, rotated: usize) -> usize {
    (rotated / 2).div_ceil(VECTOR) + (columns - rotated).div_ceil(VECTOR)
}

pub fn flag(condition: bool, bit: u32) -> u32 {
    if condition {
        bit
    } else {
        0
    }
}

pub fn narrow(number: usize) -> Result<u32> {
    match u32::try_from(number) {
        Ok(number) => Ok(number),
        Err(_) => bail!("{number} is more than a Metal kernel can count to"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
                    other => other,
                };
                (field.to_string(), kind.to_string())
            })
            .collect()
    }

    #[test]
    fn parameter_blocks_have_the_fields_of_the_metal_structs() {
        let blocks = [
            (Source::Norm, "Rows", Rows::FIELDS),
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
            (Source::Rope, "RopeParameters", RopeParameters::FIELDS),
            (Source::Pooling, "PoolParameters", PoolParameters::FIELDS),
            (Source::Pooling, "L2Parameters", L2Parameters::FIELDS),
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
            ("MAXIMUM_SIMDGROUPS", MAXIMUM_LANES / SIMD_WIDTH),
            ("POOL_SIMDGROUPS", POOL_LANES / SIMD_WIDTH),
            ("POOL_LANES", SIMD_WIDTH),
        ];
        for (name, value) in constants {
            let line = format!("constant constexpr uint {name} = {value};");
            assert!(Source::Pooling.text().contains(&line), "{line}");
        }
        assert_eq!(POOL_COLUMNS, VECTOR * SIMD_WIDTH);
    }

    fn rows(dims: &[usize], strides: &[usize]) -> (u32, u32, u32, u32, u32) {
        let r = Rows::along(dims, strides).expect("three dimensions at most");
        (
            r.inner_size,
            r.middle_size,
            r.inner_stride,
            r.middle_stride,
            r.outer_stride,
        )
    }

    #[test]
    fn leading_dimensions_merge_where_they_continue_one_another() {
        assert_eq!(rows(&[2, 3, 5], &[150, 50, 10]), (30, 1, 10, 0, 0));
        assert_eq!(rows(&[2, 3, 5], &[150, 10, 30]), (5, 3, 30, 10, 150));
        assert_eq!(rows(&[4, 1, 5], &[80, 999, 16]), (20, 1, 16, 0, 0));
        assert_eq!(rows(&[4, 8, 5], &[5, 0, 1]), (5, 8, 1, 0, 5));
        assert_eq!(rows(&[4, 8], &[0, 0]), (32, 1, 0, 0, 0));
        assert_eq!(rows(&[], &[]), (1, 1, 0, 0, 0));
        assert_eq!(rows(&[0, 7], &[70, 10]), (1, 1, 10, 0, 0));
    }

    #[test]
    fn four_unrelated_dimensions_are_refused() {
        let error = Rows::along(&[2, 3, 4, 5], &[1000, 7, 300, 11]).unwrap_err();
        assert!(error.to_string().contains("contiguous()"), "{error}");
    }

    #[test]
    fn every_row_of_a_strided_layout_is_found() {
        let (dims, strides) = ([3usize, 4, 2, 6], [200usize, 12, 6 * 8, 1]);
        let layout = Layout::new(Shape::from(dims.to_vec()), strides.to_vec(), 5);
        let view = RowView::of("test", &layout).expect("a row view");
        assert!(!view.aligned);
        let mut row = 0;
        for (a, b, c) in
            (0..3).flat_map(|a| (0..4).flat_map(move |b| (0..2).map(move |c| (a, b, c))))
        {
            let r = view.rows;
            let (inner, rest) = (row % r.inner_size, row / r.inner_size);
            let (middle, outer) = (rest % r.middle_size, rest / r.middle_size);
            let start = outer * r.outer_stride + middle * r.middle_stride + inner * r.inner_stride;
            assert_eq!(start as usize, a * 200 + b * 12 + c * 48);
            row += 1;
        }
        assert_eq!(view.count, row as usize);
    }

    #[test]
    fn alignment_needs_offset_and_strides() {
        let layout = |stride, offset| Layout::new(Shape::from(vec![3, 8]), vec![stride, 1], offset);
        let aligned = |stride, offset| {
            RowView::of("test", &layout(stride, offset))
                .expect("a view")
                .aligned
        };
        assert!(aligned(8, 0) && aligned(12, 4));
        assert!(!aligned(9, 0) && !aligned(8, 2));
    }

    #[test]
    fn a_last_dimension_with_gaps_is_refused() {
        let layout = Layout::new(Shape::from(vec![3, 8]), vec![1, 3], 0);
        assert!(RowView::of("softmax", &layout)
            .unwrap_err()
            .to_string()
            .contains("softmax"));
    }

    #[test]
    fn contiguous_tensors_flatten_and_strided_ones_do_not() {
        let contiguous = Layout::contiguous((5, 3));
        let view = RowView::of("gelu", &contiguous)
            .expect("a view")
            .flattened(&contiguous);
        assert_eq!((view.count, view.columns, view.aligned), (1, 15, true));
        let strided = Layout::new(Shape::from(vec![5, 3]), vec![4, 1], 0);
        let view = RowView::of("gelu", &strided)
            .expect("a view")
            .flattened(&strided);
        assert_eq!((view.count, view.columns), (5, 3));
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
}
