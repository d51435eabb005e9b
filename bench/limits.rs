//! What some threads of this machine reach, as JSON: `limits [THREADS [MILLISECONDS]]`. Bytes per second of reading
//! working sets of several sizes again and again, and operations per second (two for a multiplication
//! with its addition) of every kind of arithmetic that the processor has. A value is the best of many
//! short rounds, so that what else the machine does costs little.
//!
//! It stands alone, so that `rustc -O` compiles it in seconds.

use std::alloc::{alloc, dealloc, Layout};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long the rounds of one measurement take together, unless it is said.
const PATIENCE: u64 = 2000;
/// How long a round takes at least: far longer than the clock's steps, and shorter than what the system
/// gives to other processes between.
const ROUND: Duration = Duration::from_millis(1);
/// What a thread reads in a round.
const WINDOW: usize = 8 << 20;
/// Working sets of all threads together: far above all caches, that of a small language model, and
/// that of a small encoder.
const MEBIBYTES: [usize; 3] = [512, 96, 32];
/// At how many places of its part a thread reads by turns.
const STREAMS: [usize; 4] = [1, 2, 4, 8];

fn main() {
    let mut given = std::env::args().skip(1).map(|text| {
        text.parse::<u64>()
            .expect("threads and milliseconds are numbers")
    });
    let threads = match given.next() {
        Some(count) => count as usize,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let patience = Duration::from_millis(given.next().unwrap_or(PATIENCE));
    let reading: Vec<String> = MEBIBYTES
        .iter()
        .map(|&size| {
            let rate = bytes_per_second(threads, (size << 20) / threads, patience);
            format!("{{\"mebibytes\": {size}, \"bytes_per_second\": {rate:.0}}}")
        })
        .collect();
    let arithmetic: Vec<String> = machine::kinds()
        .iter()
        .map(|kind| {
            let rate = operations_per_second(threads, kind, patience);
            format!("\"{}\": {rate:.0}", kind.name)
        })
        .collect();
    println!(
        "{{\"threads\": {threads}, \"level\": \"{}\", \"reading\": [{}], \"operations_per_second\": {{{}}}}}",
        machine::level(),
        reading.join(", "),
        arithmetic.join(", ")
    );
}

/// The seconds of the shortest round in which all threads do `work` on what each has prepared, from the
/// first one's start to the last one's end. The work is told how many rounds went before.
fn shortest_round<T>(
    threads: usize,
    patience: Duration,
    prepare: impl Fn() -> T + Sync,
    work: impl Fn(&T, usize) + Sync,
) -> f64 {
    let arrivals = AtomicUsize::new(0);
    let enough = AtomicBool::new(false);
    let meet = |meetings: usize| {
        arrivals.fetch_add(1, Ordering::AcqRel);
        let mut turns = 0;
        while arrivals.load(Ordering::Acquire) < threads * meetings {
            turns += 1;
            if turns % 50_000 == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    };
    let measure = |leads: bool| {
        let material = prepare();
        let mut times = Vec::new();
        let begin = Instant::now();
        loop {
            if leads && times.len() > 2 && begin.elapsed() > patience {
                enough.store(true, Ordering::Relaxed);
            }
            meet(2 * times.len() + 1);
            if enough.load(Ordering::Relaxed) {
                return times;
            }
            let start = Instant::now();
            work(&material, times.len());
            times.push((start, Instant::now()));
            // Nobody says that it is enough before all have begun this round.
            meet(2 * times.len());
        }
    };
    let measure = &measure;
    let times: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| scope.spawn(move || measure(index == 0)))
            .collect();
        let join =
            |worker: std::thread::ScopedJoinHandle<'_, _>| worker.join().expect("no thread panics");
        workers.into_iter().map(join).collect()
    });
    (0..times[0].len())
        .map(|round| {
            let start = times.iter().map(|thread| thread[round].0).min();
            let end = times.iter().map(|thread| thread[round].1).max();
            end.zip(start)
                .map_or(f64::INFINITY, |(end, start)| (end - start).as_secs_f64())
        })
        .fold(f64::INFINITY, f64::min)
}

/// The rate at which all threads read on in `bytes` each, with the best number of streams.
fn bytes_per_second(threads: usize, bytes: usize, patience: Duration) -> f64 {
    let windows = (bytes / WINDOW).max(1);
    let read = |buffer: &Buffer, round: usize| {
        let window = buffer.words().chunks_exact(WINDOW / 8).nth(round % windows);
        // All windows are read with one number of streams, then with the next.
        let streams = STREAMS[round / windows % STREAMS.len()];
        black_box(window.map(|words| machine::read(words, streams)));
    };
    let prepare = || Buffer::new(windows * WINDOW);
    (threads * WINDOW) as f64 / shortest_round(threads, patience, prepare, read)
}

fn operations_per_second(threads: usize, kind: &Kind, patience: Duration) -> f64 {
    const FEW: usize = 1_000;
    let few = shortest_round(threads, patience / 10, || (), |(), _| (kind.run)(FEW));
    let repetitions = FEW * (ROUND.as_secs_f64() / few).ceil() as usize;
    let seconds = shortest_round(threads, patience, || (), |(), _| (kind.run)(repetitions));
    (threads * repetitions * kind.operations) as f64 / seconds
}

/// A kind of arithmetic: `run` does so many repetitions, in registers, of so many operations each.
struct Kind {
    name: &'static str,
    operations: usize,
    run: fn(usize),
}

/// Memory with something in it, on huge pages where the system lets us have them.
struct Buffer {
    start: *mut u64,
    layout: Layout,
}

impl Buffer {
    const PAGE: usize = 2 << 20;

    /// Whole huge pages, at least one.
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, Self::PAGE).expect("a buffer fits into memory");
        // SAFETY: the size is not 0, and every word is written before it is read.
        let start = unsafe {
            let start = alloc(layout);
            assert!(!start.is_null(), "no memory for {} bytes", layout.size());
            machine::ask_for_huge_pages(start, layout.size());
            let start = start.cast::<u64>();
            for index in 0..layout.size() / 8 {
                start.add(index).write(index as u64);
            }
            start
        };
        Self { start, layout }
    }

    fn words(&self) -> &[u64] {
        // SAFETY: all of it was written, and it lives as long as this.
        unsafe { std::slice::from_raw_parts(self.start, self.layout.size() / 8) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(self.start.cast(), self.layout) };
    }
}

/// Code for any processor, which the compiler makes vectors of.
mod portable {
    /// All words combined, eight at a time from each stream.
    #[inline(always)]
    pub fn read(words: &[u64], streams: usize) -> u64 {
        let part = words.len() / streams;
        let mut sums = [0u64; 8];
        for offset in (0..part).step_by(8) {
            for stream in 0..streams {
                let at = stream * part + offset;
                for (sum, word) in sums.iter_mut().zip(&words[at..at + 8]) {
                    *sum |= word;
                }
            }
        }
        sums.iter().fold(0, |all, sum| all | sum)
    }

    /// How many sums are made at once: enough to hide the latency of an addition.
    pub const SUMS: usize = 64;

    /// f32 products with their additions, fused where every processor of the kind does that.
    pub fn multiply(repetitions: usize) {
        let (factor, term) = std::hint::black_box((0.5f32, 1.0f32));
        let mut sums = [0f32; SUMS];
        for _ in 0..repetitions {
            for sum in &mut sums {
                *sum = if cfg!(target_arch = "aarch64") {
                    sum.mul_add(factor, term)
                } else {
                    *sum * factor + term
                };
            }
        }
        std::hint::black_box(sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{portable, Kind};
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    pub use system::ask_for_huge_pages;

    /// The name that the engine has for what the processor can do.
    pub fn level() -> &'static str {
        let wide = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        let narrow = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        if wide && has_bf16() && has_tiles() {
            "amx"
        } else if wide && has_bf16() {
            "avx512bf16"
        } else if wide && is_x86_feature_detected!("avx512vnni") {
            "avx512vnni"
        } else if wide {
            "avx512"
        } else if narrow && is_x86_feature_detected!("avxvnni") {
            "avxvnni"
        } else if narrow {
            "avx2"
        } else {
            "scalar"
        }
    }

    fn has_bf16() -> bool {
        is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bf16")
    }

    /// Tiles of bf16 and of bytes, which the kernel has to permit.
    fn has_tiles() -> bool {
        const WANTED: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        if !is_x86_feature_detected!("avx2") {
            return false;
        }
        // SAFETY: leaf 7 exists on every processor with AVX2; newer compilers know the call to be safe.
        #[allow(unused_unsafe)]
        let found = unsafe { __cpuid_count(7, 0) }.edx & WANTED == WANTED;
        found && system::permits_tiles()
    }

    /// Whether integer products are there beside AVX-512.
    fn has_vnni() -> bool {
        !matches!(level(), "scalar" | "avx2" | "avx512")
    }

    pub fn kinds() -> Vec<Kind> {
        let mut kinds = Vec::new();
        // SAFETY, for all of them: each stands behind the question whether its instructions are there.
        kinds.push(match level() {
            "scalar" => Kind {
                name: "f32_vectors",
                operations: 2 * portable::SUMS,
                run: portable::multiply,
            },
            "avx2" => Kind {
                name: "f32_vectors",
                operations: 2 * 8 * 12,
                // SAFETY: this level has AVX2 and FMA; the function takes no pointers.
                run: |count| unsafe { f32_avx2(count) },
            },
            _ => Kind {
                name: "f32_vectors",
                operations: 2 * 16 * 12,
                // SAFETY: the levels above AVX2 have AVX-512; the function takes no pointers.
                run: |count| unsafe { f32_avx512(count) },
            },
        });
        if has_vnni() {
            // SAFETY: `has_vnni` was asked; the function takes no pointers.
            let run = |count| unsafe { int8_avx512(count) };
            kinds.push(Kind {
                name: "int8_vectors",
                operations: 2 * 64 * 12,
                run,
            });
        }
        if matches!(level(), "avx512bf16" | "amx") {
            // SAFETY: these two levels have AVX512-BF16; the function takes no pointers.
            let run = |count| unsafe { bf16_avx512(count) };
            kinds.push(Kind {
                name: "bf16_vectors",
                operations: 2 * 32 * 12,
                run,
            });
        }
        if level() == "amx" {
            // SAFETY: this level has tiles of bf16; the function takes no pointers.
            let run = |count| unsafe { bf16_tiles(count) };
            kinds.push(Kind {
                name: "bf16_tiles",
                operations: 2 * 16 * 16 * 32 * 4,
                run,
            });
            // SAFETY: this level has int8 tiles; the function takes no pointers.
            let run = |count| unsafe { int8_tiles(count) };
            kinds.push(Kind {
                name: "int8_tiles",
                operations: 2 * 16 * 16 * 64 * 4,
                run,
            });
        }
        kinds
    }

    pub fn read(words: &[u64], streams: usize) -> u64 {
        match level() {
            "scalar" => portable::read(words, streams),
            // SAFETY: this level has AVX2, and the words are a slice.
            "avx2" => unsafe { read_avx2(words, streams) },
            // SAFETY: the levels above have AVX-512, and the words are a slice.
            _ => unsafe { read_avx512(words, streams) },
        }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn read_avx512(words: &[u64], streams: usize) -> u64 {
        let part = words.len() / streams;
        let mut sums = [_mm512_setzero_si512(); 4];
        for offset in (0..part).step_by(32) {
            for stream in 0..streams {
                for (index, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: a part is whole groups of 32 words.
                    let loaded = unsafe {
                        _mm512_loadu_si512(
                            words
                                .as_ptr()
                                .add(stream * part + offset + 8 * index)
                                .cast(),
                        )
                    };
                    *sum = _mm512_or_si512(*sum, loaded);
                }
            }
        }
        let all = sums
            .into_iter()
            .fold(_mm512_setzero_si512(), |all, sum| _mm512_or_si512(all, sum));
        _mm512_reduce_or_epi64(all) as u64
    }

    #[target_feature(enable = "avx2")]
    unsafe fn read_avx2(words: &[u64], streams: usize) -> u64 {
        portable::read(words, streams)
    }

    /// Twelve sums that do not wait for one another.
    macro_rules! vector_products {
        ($name:ident, $features:literal, $zero:expr, $operands:expr, $multiply:expr) => {
            #[target_feature(enable = $features)]
            unsafe fn $name(repetitions: usize) {
                let (a, b) = black_box($operands);
                let mut sums = [$zero; 12];
                for _ in 0..repetitions {
                    for sum in &mut sums {
                        *sum = $multiply(*sum, a, b);
                    }
                }
                black_box(sums);
            }
        };
    }

    vector_products!(
        f32_avx2,
        "avx2,fma",
        _mm256_setzero_ps(),
        (_mm256_set1_ps(0.5), _mm256_set1_ps(0.25)),
        |sum, a, b| _mm256_fmadd_ps(a, b, sum)
    );
    vector_products!(
        f32_avx512,
        "avx512f",
        _mm512_setzero_ps(),
        (_mm512_set1_ps(0.5), _mm512_set1_ps(0.25)),
        |sum, a, b| _mm512_fmadd_ps(a, b, sum)
    );
    vector_products!(
        int8_avx512,
        "avx512f,avx512vnni",
        _mm512_setzero_si512(),
        (_mm512_set1_epi8(3), _mm512_set1_epi8(-5)),
        |sum, a, b| _mm512_dpbusd_epi32(sum, a, b)
    );
    // The type of the operands has no constructor: bits of small numbers will do.
    vector_products!(
        bf16_avx512,
        "avx512f,avx512bf16",
        _mm512_setzero_ps(),
        {
            // SAFETY: both are 64 bytes, and any bits are numbers.
            let half: __m512bh = unsafe { std::mem::transmute(_mm512_set1_epi16(0x3f00)) };
            (half, half)
        },
        |sum, a, b| _mm512_dpbf16_ps(sum, a, b)
    );

    /// Shapes of the tile registers, as the processor reads them.
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    /// Two tiles of rows by two of columns: four sums, each used again after three others.
    macro_rules! tile_products {
        ($name:ident, $multiply:literal) => {
            unsafe fn $name(repetitions: usize) {
                let mut shapes =
                    Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
                shapes.row_bytes[..8].fill(64);
                shapes.rows[..8].fill(16);
                // Bytes, and as pairs bf16, that are small numbers.
                let values: [u8; 1024] = std::array::from_fn(|index| (index * 37 % 0x3f) as u8);
                // SAFETY: the tiles are configured before they are used and released after, all are
                // 16 rows of 64 bytes, and as many bytes are read.
                unsafe {
                    asm!(
                        "ldtilecfg [{shapes}]",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "tileloadd tmm4, [{values} + {stride}]",
                        "tileloadd tmm5, [{values} + {stride}]",
                        "tileloadd tmm6, [{values} + {stride}]",
                        "tileloadd tmm7, [{values} + {stride}]",
                        "2:",
                        concat!($multiply, " tmm0, tmm4, tmm6"),
                        concat!($multiply, " tmm1, tmm4, tmm7"),
                        concat!($multiply, " tmm2, tmm5, tmm6"),
                        concat!($multiply, " tmm3, tmm5, tmm7"),
                        "dec {repetitions}",
                        "jnz 2b",
                        "tilerelease",
                        shapes = in(reg) &shapes,
                        values = in(reg) values.as_ptr(),
                        stride = in(reg) 64usize,
                        repetitions = inout(reg) repetitions.max(1) => _,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            }
        };
    }

    tile_products!(bf16_tiles, "tdpbf16ps");
    tile_products!(int8_tiles, "tdpbusd");

    #[cfg(target_os = "linux")]
    mod system {
        use std::ffi::{c_int, c_long, c_void};

        extern "C" {
            fn syscall(number: c_long, ...) -> c_long;
            fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
        }

        /// Asks the kernel to keep tiles over context switches.
        pub fn permits_tiles() -> bool {
            const ARCH_PRCTL: c_long = 158;
            const REQUEST_PERMISSION: c_long = 0x1023;
            const TILE_DATA: c_long = 18;
            // SAFETY: the call takes two numbers and touches no memory of ours.
            unsafe { syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0 }
        }

        /// A wish: the memory is as good without.
        ///
        /// # Safety
        /// The memory is the caller's.
        pub unsafe fn ask_for_huge_pages(start: *mut u8, bytes: usize) {
            const HUGE_PAGES: c_int = 14;
            // SAFETY: the advice does not change what the memory holds.
            unsafe { madvise(start.cast(), bytes, HUGE_PAGES) };
        }
    }

    #[cfg(not(target_os = "linux"))]
    mod system {
        pub fn permits_tiles() -> bool {
            false
        }

        pub unsafe fn ask_for_huge_pages(_start: *mut u8, _bytes: usize) {}
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    use super::{portable, Kind};

    pub use portable::read;

    pub fn level() -> &'static str {
        if cfg!(target_arch = "aarch64") {
            "neon"
        } else {
            "scalar"
        }
    }

    pub fn kinds() -> Vec<Kind> {
        vec![Kind {
            name: "f32_vectors",
            operations: 2 * portable::SUMS,
            run: portable::multiply,
        }]
    }

    pub unsafe fn ask_for_huge_pages(_start: *mut u8, _bytes: usize) {}
}
