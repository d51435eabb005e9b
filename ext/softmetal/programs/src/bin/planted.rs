//! Makes mistakes on purpose, which the device must notice under `SOFTMETAL_CHECK=1`:
//! `planted none|output-as-input|wrong-offset`. Two kernels, the second of which reads what the first wrote.

use candle_core::{DType, MetalDevice, Result};
use candle_metal_kernels::metal::ComputeCommandEncoder;
use engine::Device;
use objc2_metal::MTLSize;

const SOURCE: &str = "
#include <metal_stdlib>
using namespace metal;
kernel void twice(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) { y[i] = 2.0 * x[i]; }
";
const COUNT: usize = 64;

fn run(device: &MetalDevice, plant: &str) -> Result<()> {
    let metal = device.metal_device();
    let failed = |error| candle_core::Error::Msg(format!("{error:?}"));
    let library = metal
        .new_library_with_source(SOURCE, None)
        .map_err(failed)?;
    let function = library.get_function("twice", None).map_err(failed)?;
    let pipeline = metal
        .new_compute_pipeline_state_with_function(&function)
        .map_err(failed)?;
    let first = device.new_buffer_with_data(&vec![1.0f32; COUNT])?;
    let second = device.new_buffer(COUNT, DType::F32, "second")?;
    let third = device.new_buffer(COUNT, DType::F32, "third")?;
    for (from, to) in [(&first, &second), (&second, &third)] {
        let guard = device.command_encoder()?;
        let encoder: &ComputeCommandEncoder = guard.as_ref();
        encoder.set_compute_pipeline_state(&pipeline);
        let offset = if plant == "wrong-offset" { 16 } else { 0 };
        encoder.set_input_buffer(0, Some(from), offset);
        match plant {
            "output-as-input" => encoder.set_input_buffer(1, Some(to), 0),
            _ => encoder.set_output_buffer(1, Some(to), 0),
        }
        let size = |width| MTLSize {
            width,
            height: 1,
            depth: 1,
        };
        encoder.dispatch_thread_groups(size(COUNT / 32), size(32));
    }
    device.flush_and_wait_current()
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let plant = std::env::args().nth(1).unwrap_or_default();
    match Device::Metal(0).open()? {
        candle_core::Device::Metal(device) => Ok(run(&device, &plant)?),
        _ => Err("no Metal device".into()),
    }
}
