//! Our kernels beside candle-nn's, in one run: medians of repetitions in turns, results read back.
//! `rake bench:kernels` runs it; `-- --json` prints one JSON object per line instead of a table,
//! `-- --products` times the products with every type of weights alone, `-- --reading` what those with one row read.

mod products;
mod regressions;

use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use engine::nn::{elementwise, Linear};
use kernels::{self, Activation};

/// What the gem runs with; candle's side of every pair has it too.
#[global_allocator]
static ALLOCATOR: base::runtime::allocator::Reusing = base::runtime::allocator::Reusing::new();

/// The two sides of a pair take turns, so that what disturbs the machine disturbs both; a turn is long
/// enough for a side to find the caches as it left them, as layers of a model do.
const TURNS: usize = 9;
const REPETITIONS: usize = 9;

/// From an input, which it may write over, to a result.
type Work<'a> = Box<dyn Fn(&Tensor) -> Tensor + Sync + 'a>;

struct Pair<'a> {
    name: String,
    ours: Work<'a>,
    theirs: Work<'a>,
    /// How many times faster ours is meant to be.
    wanted: f64,
}

fn main() {
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build, whose times mean nothing: run it with --release");
        std::process::exit(2);
    }
    let asks_for = |name: &str| std::env::args().any(|argument| argument == name);
    let json = asks_for("--json");
    let run = if asks_for("--reading") {
        reading(json)
    } else {
        run_all(json, asks_for("--products"))
    };
    match run {
        Ok(true) => {}
        Ok(false) => println!("some ratios are below what is wanted"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

fn reading(json: bool) -> engine::Result<bool> {
    base::runtime::threads::install(|| products::report_reading(json))??;
    Ok(true)
}

/// Whether every ratio reaches what is wanted.
fn run_all(json: bool, products_alone: bool) -> engine::Result<bool> {
    let isa = kernels::Isa::current()?.name();
    if !json && !products_alone {
        regressions::report()?;
    }
    if !json {
        println!("{} threads, {isa}", base::runtime::threads::count());
    }
    base::runtime::threads::install(|| products::report(json))??;
    if products_alone {
        return Ok(true);
    }
    if !json {
        println!(
            "{:<36} {:>10} {:>10} {:>7} {:>7}",
            "case", "ours ms", "other ms", "ratio", "wanted"
        );
    }
    let measured =
        base::runtime::threads::install(|| [384, 768].map(|width| run(4096, width, json)))?;
    Ok(measured.iter().all(|&reached| reached))
}

/// Whether every ratio reaches what is wanted.
fn run(rows: usize, width: usize, json: bool) -> bool {
    let device = Device::Cpu;
    let make = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, &device).expect("a tensor");
    let (x, residual) = (make(&[rows, width]), make(&[rows, width]));
    let (weight, bias) = (make(&[width]), make(&[width]));
    let square = make(&[width, width]);
    let packed = Linear::new(square.clone(), None).expect("a layer");
    let plain = Linear::shared(square, None).expect("a layer");
    let mut all = pairs(&residual, &weight, &bias);
    all.push(Pair {
        name: "packed linear / candle's matmul".into(),
        ours: Box::new(|x| packed.forward(x).expect("ours")),
        theirs: Box::new(|x| plain.forward(x).expect("theirs")),
        wanted: 1.0,
    });
    let mut reached = true;
    for pair in all {
        let (ours, theirs) = measure(&pair, &x);
        let ratio = theirs / ours;
        reached &= ratio >= pair.wanted;
        let name = format!("{} {rows}x{width}", pair.name);
        if json {
            println!("{{\"case\":\"{name}\",\"ours_ms\":{ours:.4},\"other_ms\":{theirs:.4},\"ratio\":{ratio:.2}}}");
        } else {
            println!(
                "{name:<36} {ours:>10.3} {theirs:>10.3} {ratio:>7.2} {:>7.1}",
                pair.wanted
            );
        }
    }
    reached
}

fn pairs<'a>(residual: &'a Tensor, weight: &'a Tensor, bias: &'a Tensor) -> Vec<Pair<'a>> {
    let pair = |name: &str, wanted, ours: Work<'a>, theirs| Pair {
        name: name.into(),
        ours,
        theirs,
        wanted,
    };
    let (norm, rms) = (kernels::layer_norm, kernels::rms_norm);
    vec![
        pair(
            "layer_norm / candle-nn",
            3.0,
            Box::new(move |x| norm(x, weight, Some(bias), 1e-5).expect("ours")),
            Box::new(move |x| candle_nn::ops::layer_norm(x, weight, bias, 1e-5).expect("theirs")),
        ),
        pair(
            "rms_norm / candle-nn",
            3.0,
            Box::new(move |x| rms(x, weight, 1e-5).expect("ours")),
            Box::new(move |x| candle_nn::ops::rms_norm(x, weight, 1e-5).expect("theirs")),
        ),
        pair(
            "softmax / candle-nn",
            3.0,
            Box::new(move |x| kernels::softmax(x).expect("ours")),
            Box::new(move |x| candle_nn::ops::softmax_last_dim(x).expect("theirs")),
        ),
        pair(
            "gelu / candle's gelu_erf",
            3.0,
            Box::new(move |x| kernels::activate(x, Activation::Gelu).expect("ours")),
            Box::new(move |x| x.gelu_erf().expect("theirs")),
        ),
        pair(
            "add_layer_norm / add, layer_norm",
            1.5,
            Box::new(move |x| {
                let both = kernels::add_layer_norm(x.clone(), residual, weight, Some(bias), 1e-5);
                both.expect("ours").1
            }),
            Box::new(move |x| {
                let sum = elementwise::add(x, residual).expect("a sum");
                norm(&sum, weight, Some(bias), 1e-5).expect("unfused")
            }),
        ),
        pair(
            "add_rms_norm / add, rms_norm",
            1.5,
            Box::new(move |x| {
                let both = kernels::add_rms_norm(x.clone(), residual, weight, 1e-5, 0.0);
                both.expect("ours").1
            }),
            Box::new(move |x| {
                let sum = elementwise::add(x, residual).expect("a sum");
                rms(&sum, weight, 1e-5).expect("unfused")
            }),
        ),
    ]
}

/// Medians in milliseconds, after a warm-up whose results are compared. Each side has an input of its
/// own, since one may write over it: what it then holds grows, which costs no time.
fn measure(pair: &Pair<'_>, x: &Tensor) -> (f64, f64) {
    let inputs = [(); 2].map(|()| x.copy().expect("a copy"));
    let apart = ((pair.ours)(&inputs[0]) - (pair.theirs)(&inputs[1]))
        .and_then(|d| d.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>())
        .expect("results of one shape");
    assert!(apart < 1e-2, "{}: the results differ by {apart}", pair.name);
    let once = |work: &Work<'_>, input: &Tensor| {
        let start = Instant::now();
        let result = work(input);
        let element = result
            .get(0)
            .and_then(|row| row.to_dtype(DType::F32)?.to_vec1::<f32>());
        assert!(element.is_ok_and(|values| values.iter().all(|v| v.is_finite())));
        start.elapsed().as_secs_f64() * 1e3
    };
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        let sides = times.iter_mut().zip([&pair.ours, &pair.theirs]);
        for ((times, work), input) in sides.zip(&inputs) {
            times.extend((0..REPETITIONS).map(|_| once(work, input)));
        }
    }
    let [ours, theirs] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    (ours, theirs)
}
