//! Encoded audio to samples, within limits on bytes and seconds.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use super::{Audio, SampleStream};
use crate::{CancelToken, Result};
use base::runtime::memory;

/// What audio may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the encoded file.
    pub max_bytes: usize,
    /// Of the decoded audio.
    pub max_seconds: usize,
}

static MAX_BYTES: AtomicUsize = AtomicUsize::new(2 << 30);
static MAX_SECONDS: AtomicUsize = AtomicUsize::new(6 * 3600);

/// Samples that are decoded between two looks at the memory that is left.
const CHECKED: usize = 1 << 22;

/// The limits of this process.
pub fn limits() -> Limits {
    Limits {
        max_bytes: MAX_BYTES.load(Ordering::Relaxed),
        max_seconds: MAX_SECONDS.load(Ordering::Relaxed),
    }
}

pub fn set_limits(limits: Limits) {
    MAX_BYTES.store(limits.max_bytes, Ordering::Relaxed);
    MAX_SECONDS.store(limits.max_seconds, Ordering::Relaxed);
}

/// Whether bytes begin as the files do that `decode` reads.
pub fn is_encoded(bytes: &[u8]) -> bool {
    match bytes {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..]
        | [b'f', b'L', b'a', b'C', ..]
        | [b'O', b'g', b'g', b'S', ..]
        | [b'I', b'D', b'3', ..]
        | [0x1a, 0x45, 0xdf, 0xa3, ..]
        | [_, _, _, _, b'f', b't', b'y', b'p', ..] => true,
        // Frames of MP3 and of AAC without a container.
        [0xff, second, ..] => second & 0xe0 == 0xe0,
        _ => false,
    }
}

/// The audio of a file, at `rate` where one is given.
pub fn read_file(
    path: &Path,
    rate: Option<u32>,
    limits: &Limits,
    cancel: &CancelToken,
) -> Result<Audio> {
    whole(SampleStream::of_file(path, rate, limits)?, cancel)
}

/// The audio of a file's bytes, at `rate` where one is given.
pub fn decode(
    bytes: Arc<[u8]>,
    rate: Option<u32>,
    limits: &Limits,
    cancel: &CancelToken,
) -> Result<Audio> {
    whole(SampleStream::of_bytes(bytes, rate, limits)?, cancel)
}

fn whole(mut stream: SampleStream, cancel: &CancelToken) -> Result<Audio> {
    let (mut samples, mut checked) = (Vec::new(), 0);
    while stream.read(&mut samples, cancel)? {
        if samples.len() >= checked {
            checked = samples.len() + CHECKED;
            // A growing list doubles.
            memory::ensure_elements(&[2 * checked], 4, "the samples of an audio")?;
        }
    }
    let (rate, channels) = stream.format();
    Audio::new(samples, rate, channels)
}
