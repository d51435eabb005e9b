//! Intel's tile registers: products of blocks of 16 × 64 bytes. The compiler has no stable names for
//! them, so they are written as assembly.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;

/// Rows of a tile, and its columns of sums.
pub const TILE: usize = 16;

/// Bytes of one row of a tile: 32 bf16 or 64 integers of a byte.
const ROW_BYTES: usize = 64;

/// Whether the CPU has tiles of bf16 and of bytes, and the kernel lets this process use them.
pub fn is_usable() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let wanted = BF16 | TILES | INT8;
    // SAFETY: leaf 7 exists on every CPU with AVX2, which was found before. Newer compilers know it to
    // be safe.
    #[allow(unused_unsafe)]
    let has = unsafe { __cpuid_count(7, 0) }.edx & wanted == wanted;
    has && is_permitted()
}

/// Asks the kernel, once per process and for its children, to keep tiles over context switches.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const REQUEST_PERMISSION: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// The first palette.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tiles that this thread may use until it is dropped.
pub struct Tiles(());

impl Tiles {
    /// All eight at their full size, but where `a` has fewer rows than a tile: then the first four, for
    /// sums, and the fifth, for `a`, have as many. Tiles with fewer rows take less time.
    ///
    /// # Safety
    /// `is_usable()` said yes.
    pub unsafe fn configure(rows_of_a: usize) -> Self {
        let rows_of_a = rows_of_a.clamp(1, TILE);
        let mut shapes = [(TILE, ROW_BYTES); 8];
        for shape in &mut shapes[..5] {
            shape.0 = rows_of_a;
        }
        // SAFETY: the CPU has AMX, as the caller checked by `is_usable`; no pointer is passed, and rows and bytes are
        // at most those of a tile.
        unsafe { Self::load(shapes) }
    }

    /// Three for `multiply_group`: sums, rows of `a` of so many bytes, and columns as deep. The others stay
    /// unused: where a core is shared, they would take the place of renamed ones.
    ///
    /// # Safety
    /// `is_usable()` said yes; the bytes are whole groups of four, at most 64.
    pub unsafe fn for_groups(bytes: usize) -> Self {
        let mut shapes = [(0, 0); 8];
        shapes[..3].copy_from_slice(&[(TILE, ROW_BYTES), (TILE, bytes), (bytes / 4, ROW_BYTES)]);
        // SAFETY: the CPU has AMX, as the caller checked by `is_usable`; no pointer is passed, and `bytes` are at
        // most 64, as the caller vouches.
        unsafe { Self::load(shapes) }
    }

    /// Rows, and bytes of each, of every tile.
    unsafe fn load(shapes: [(usize, usize); 8]) -> Self {
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for (tile, (rows, bytes)) in shapes.into_iter().enumerate() {
            configuration.rows[tile] = rows as u8;
            configuration.row_bytes[tile] = bytes as u16;
        }
        // SAFETY: the caller vouches for the instructions; the 64 bytes are a valid configuration.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly));
        }
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: tiles were configured, so the CPU has AMX; the instruction touches no memory.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// One or two tiles of rows of `a`, two tiles of columns of `b`, and where the sums go. Strides are
/// bytes from row to row.
#[derive(Clone, Copy)]
pub struct Operands {
    pub a: *const u8,
    pub a_stride: usize,
    /// [16 · `steps`, 128] bytes.
    pub b: *const u8,
    /// Tiles of depth.
    pub steps: usize,
    pub sums: *mut u8,
    pub stride: usize,
    /// What is multiplied later, and may lie anywhere; none where all lies in the first-level cache, so that
    /// nothing is asked for.
    pub later: Option<*const u8>,
}

/// Blocks of rows that together ask for as much as they multiply with.
const LATER_PARTS: usize = 8;

/// What the block of rows that begins with `row` asks for: its part of the panel that lies `ahead` panels behind
/// this one, which has so many bytes.
pub fn later(panel: *const u8, bytes: usize, ahead: usize, row: usize) -> *const u8 {
    let part = row / (2 * TILE) % LATER_PARTS;
    panel.wrapping_add(ahead * bytes + part * bytes / LATER_PARTS)
}

/// A step without asking.
macro_rules! silent {
    ($part:tt) => {
        ""
    };
}

/// An eighth of what a step asks for: four lines of the next step's columns and four of rows two steps ahead,
/// into the first-level cache; and a line of what comes later, into the second. Tile loads that miss the cache
/// take several times as long, most of all where another thread has its share of the core and of its caches.
macro_rules! asking {
    (later) => {
        "prefetcht1 [{later}]\nadd {later}, 64"
    };
    (rows) => {
        "lea {ahead}, [{a} + 128]"
    };
    ($part:tt) => {
        concat!(
            "prefetcht0 [{b} + 2048 + 256 * ",
            $part,
            "]\nprefetcht0 [{b} + 2112 + 256 * ",
            $part,
            "]\nprefetcht0 [{b} + 2176 + 256 * ",
            $part,
            "]\nprefetcht0 [{b} + 2240 + 256 * ",
            $part,
            "]\n",
            "prefetcht0 [{ahead}]\n",
            "prefetcht0 [{ahead} + {a_stride}]\n",
            "prefetcht0 [{ahead} + 2 * {a_stride}]\n",
            "prefetcht0 [{ahead} + {thrice}]\n",
            "lea {ahead}, [{ahead} + 4 * {a_stride}]",
        )
    };
}

/// Two tiles of rows by two of columns.
macro_rules! two_by_two {
    ($multiply:literal, $operands:ident, $ask:ident $(, { $($asked:tt)* })?) => {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            $ask!(rows),
            "tileloadd tmm6, [{b} + {b_stride}]",
            $ask!(0),
            $ask!(later),
            "tileloadd tmm4, [{a} + {a_stride}]",
            $ask!(1),
            concat!($multiply, " tmm0, tmm4, tmm6"),
            $ask!(2),
            $ask!(later),
            "tileloadd tmm7, [{b} + {b_stride} + 64]",
            $ask!(3),
            concat!($multiply, " tmm1, tmm4, tmm7"),
            $ask!(4),
            $ask!(later),
            "tileloadd tmm5, [{lower} + {a_stride}]",
            $ask!(5),
            concat!($multiply, " tmm2, tmm5, tmm6"),
            $ask!(6),
            $ask!(later),
            concat!($multiply, " tmm3, tmm5, tmm7"),
            $ask!(7),
            "add {a}, 64",
            "add {lower}, 64",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {stride}], tmm0",
            "tilestored [{sums} + {stride} + 64], tmm1",
            "tilestored [{low_sums} + {stride}], tmm2",
            "tilestored [{low_sums} + {stride} + 64], tmm3",
            a = inout(reg) $operands.a => _,
            lower = inout(reg) $operands.a.add(TILE * $operands.a_stride) => _,
            a_stride = in(reg) $operands.a_stride,
            b = inout(reg) $operands.b => _,
            b_stride = in(reg) 2 * ROW_BYTES,
            steps = inout(reg) $operands.steps => _,
            sums = in(reg) $operands.sums,
            low_sums = in(reg) $operands.sums.add(TILE * $operands.stride),
            stride = in(reg) $operands.stride,
            $($($asked)*)?
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

macro_rules! products {
    ($name:ident, $multiply:literal) => {
        /// The sums of `rows` rows of `a`, at most 32.
        ///
        /// # Safety
        /// `a` holds as many whole tiles as `rows` needs, 64 · `steps` bytes wide, and the sums as
        /// many rows of 32 numbers. More than 16 rows need tiles of full size.
        pub unsafe fn $name(_tiles: &Tiles, rows: usize, operands: Operands) {
            // SAFETY: the caller vouches for the operands, and the tiles are configured; asking touches nothing.
            unsafe {
                match (rows > TILE, operands.later) {
                    (true, Some(later)) => two_by_two!(
                        $multiply,
                        operands,
                        asking,
                        {
                            later = inout(reg) later => _,
                            ahead = out(reg) _,
                            thrice = in(reg) 3 * operands.a_stride,
                        }
                    ),
                    (true, None) => two_by_two!($multiply, operands, silent),
                    (false, _) => asm!(
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "2:",
                        "tileloadd tmm6, [{b} + {b_stride}]",
                        "tileloadd tmm4, [{a} + {a_stride}]",
                        "tileloadd tmm7, [{b} + {b_stride} + 64]",
                        concat!($multiply, " tmm0, tmm4, tmm6"),
                        concat!($multiply, " tmm1, tmm4, tmm7"),
                        "add {a}, 64",
                        "add {b}, 2048",
                        "dec {steps}",
                        "jnz 2b",
                        "tilestored [{sums} + {stride}], tmm0",
                        "tilestored [{sums} + {stride} + 64], tmm1",
                        a = inout(reg) operands.a => _,
                        a_stride = in(reg) operands.a_stride,
                        b = inout(reg) operands.b => _,
                        b_stride = in(reg) 2 * ROW_BYTES,
                        steps = inout(reg) operands.steps => _,
                        sums = in(reg) operands.sums,
                        stride = in(reg) operands.stride,
                        out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    ),
                }
            }
        }
    };
}

products!(multiply_bf16, "tdpbf16ps");
// Unsigned bytes of `a`, signed ones of `b`.
products!(multiply_bytes, "tdpbusd");

/// The sums of two tiles of bf16, `a`, with one of `b`: one for both, or where they are `APART` two, side by
/// side.
///
/// # Safety
/// The tiles are those of `for_groups`; `a`, `b` and the sums have as many rows as they, 64 bytes apart.
#[inline(always)]
pub unsafe fn multiply_group<const APART: bool>(
    _tiles: &Tiles,
    [a, other]: [*const u16; 2],
    b: *const u16,
    sums: *mut f32,
) {
    macro_rules! multiply {
        ($($between:literal),*) => {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm2, [{b} + {row}]",
                "tileloadd tmm1, [{a} + {row}]",
                "tdpbf16ps tmm0, tmm1, tmm2",
                $($between,)*
                "tileloadd tmm1, [{other} + {row}]",
                "tdpbf16ps tmm0, tmm1, tmm2",
                "tilestored [{sums} + {row}], tmm0",
                a = in(reg) a,
                other = in(reg) other,
                b = in(reg) b,
                row = in(reg) ROW_BYTES,
                sums = in(reg) sums,
                out("tmm0") _, out("tmm1") _, out("tmm2") _,
                options(nostack, preserves_flags),
            )
        };
    }
    // SAFETY: the CPU has AMX, since `Tiles` exists; `a`, `other` and `b` have 16 rows of 64 bytes, `sums` room for
    // as many and for a second tile where sums are apart, as the caller vouches.
    unsafe {
        if APART {
            multiply!("tilestored [{sums} + {row} + 1024], tmm0", "tilezero tmm0")
        } else {
            multiply!()
        }
    }
}
