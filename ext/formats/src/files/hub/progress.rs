//! A bar on the terminal, and nothing anywhere else.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Smaller files are there before a bar could be read.
const SMALLEST_FILE: u64 = 1 << 20;

pub struct Progress(Option<ProgressBar>);

impl Progress {
    pub fn new(enabled: bool, file: &str, size: Option<u64>) -> Self {
        let worth_it = enabled && size.is_none_or(|size| size >= SMALLEST_FILE);
        if !worth_it || !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let (bar, template) = match size {
            Some(size) => (
                ProgressBar::new(size),
                "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            ),
            None => (ProgressBar::no_length(), "{msg} {bytes} {bytes_per_sec}"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(file.to_owned());
        Self(Some(bar))
    }

    pub fn set(&self, position: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(position);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.abandon();
        }
    }
}
