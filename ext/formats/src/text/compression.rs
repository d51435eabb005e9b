//! How repetitive a text is.

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::Compression;

/// The bytes of a text for each byte of its compressed form: much above 2, it repeats itself.
pub fn ratio(text: &str) -> f32 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(text.as_bytes());
    match written.and_then(|()| encoder.finish()) {
        Ok(compressed) => text.len() as f32 / compressed.len().max(1) as f32,
        Err(_) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetition_compresses() {
        assert!(ratio("the quick brown fox") < 1.0);
        assert!(ratio(&"again and again ".repeat(20)) > 5.0);
    }
}
