//! A bar on the terminal, and nothing anywhere else.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Smaller files are there before a bar could be read.
const SMALLEST_FILE: u64 = 1 << 20;
/// Between two drawings.
const PAUSE: Duration = Duration::from_millis(100);
/// Where nobody knows how wide the terminal is.
const USUAL_WIDTH: usize = 80;

pub struct Progress(Option<Bar>);

struct Bar {
    file: String,
    size: Option<u64>,
    /// What was there before, and since when bytes come.
    first: Cell<Option<(u64, Instant)>>,
    position: Cell<u64>,
    drawn: Cell<Option<Instant>>,
}

impl Progress {
    pub fn new(enabled: bool, file: &str, size: Option<u64>) -> Self {
        let worth_it = enabled && size.is_none_or(|size| size >= SMALLEST_FILE);
        let bar = (worth_it && std::io::stderr().is_terminal()).then(|| Bar {
            // A name of the hub doesn't move the cursor.
            file: file.chars().filter(|letter| !letter.is_control()).collect(),
            size,
            first: Cell::new(None),
            position: Cell::new(0),
            drawn: Cell::new(None),
        });
        Self(bar)
    }

    pub fn set(&self, position: u64) {
        let Some(bar) = &self.0 else { return };
        let now = Instant::now();
        if bar.first.get().is_none() {
            bar.first.set(Some((position, now)));
        }
        bar.position.set(position);
        if bar.drawn.get().is_none_or(|drawn| now - drawn >= PAUSE) {
            bar.drawn.set(Some(now));
            bar.draw("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.draw("\n");
        }
    }
}

impl Bar {
    fn draw(&self, end: &str) {
        let position = self.position.get();
        let rate = self.first.get().map_or(0.0, |(first, since)| {
            position.saturating_sub(first) as f64 / since.elapsed().as_secs_f64().max(1e-3)
        });
        let line = line(&self.file, (position, self.size), rate, width());
        // A terminal that is gone needs no bar.
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K{end}");
    }
}

/// What stands in a terminal that is so many columns wide; its last column stays free.
fn line(file: &str, (position, size): (u64, Option<u64>), rate: f64, width: usize) -> String {
    let rate_text = format!("{}/s", bytes(rate));
    let position_text = bytes(position as f64);
    let (numbers, share) = match size {
        Some(size) => {
            let left = size.saturating_sub(position) as f64;
            let left = if rate > 0.0 {
                duration((left / rate) as u64)
            } else {
                "-".to_owned()
            };
            let numbers = format!("{position_text}/{} {rate_text} {left}", bytes(size as f64));
            (numbers, Some(position as f64 / size.max(1) as f64))
        }
        None => (format!("{position_text} {rate_text}"), None),
    };
    let room = width.saturating_sub(numbers.chars().count() + 2);
    let file: String = file.chars().take(room).collect();
    // Between the two, with brackets and a space.
    let room = room.saturating_sub(file.chars().count() + 3);
    let bar = match share {
        Some(share) if room > 0 => {
            let filled = (room as f64 * share.min(1.0)) as usize;
            format!("[{}{}] ", "#".repeat(filled), "-".repeat(room - filled))
        }
        _ => String::new(),
    };
    format!("{file} {bar}{numbers}")
}

fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (0..4).find(|power| count < 1024f64.powi(power + 1));
    let power = power.unwrap_or(4);
    let digits = if power == 0 { 0 } else { 2 };
    format!(
        "{:.digits$} {}",
        count / 1024f64.powi(power),
        units[power as usize]
    )
}

fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

/// Columns of the terminal: as it says, else as COLUMNS says.
fn width() -> usize {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the call writes a `winsize`, which lives until it returns; no special instruction is used.
    let found = unsafe { libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &mut size) };
    if found == 0 && size.ws_col > 0 {
        return size.ws_col.into();
    }
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|columns| columns.parse().ok());
    columns
        .filter(|columns| (1..=1000).contains(columns))
        .unwrap_or(USUAL_WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_line_has_name_bar_numbers_and_time() {
        let found = line("a.gguf", (MIB, Some(4 * MIB)), MIB as f64, 60);
        assert_eq!(
            found,
            "a.gguf [####--------------] 1.00 MiB/4.00 MiB 1.00 MiB/s 3s"
        );
        assert_eq!(found.len(), 59);
        let done = line("a.gguf", (4 * MIB, Some(4 * MIB)), 2048.0, 60);
        assert!(done.contains("4.00 MiB/4.00 MiB 2.00 KiB/s 0s"), "{done}");
        assert!(!done.contains('-'), "{done}");
    }

    #[test]
    fn unknown_sizes_have_no_bar_and_no_rate_no_time() {
        assert_eq!(line("a", (512, None), 0.0, 60), "a 512 B 0 B/s");
        assert!(line("a", (0, Some(MIB)), 0.0, 60).ends_with(" -"));
    }

    #[test]
    fn no_line_is_wider_than_its_terminal() {
        let long = "ä".repeat(200);
        for width in 40..120 {
            let found = line(&long, (3 * MIB, Some(2 * MIB)), 1e6, width);
            assert!(found.chars().count() < width, "{width}: {found}");
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(bytes(1023.0), "1023 B");
        assert_eq!(bytes(1024.0), "1.00 KiB");
        assert_eq!(bytes(1024f64.powi(5)), "1024.00 TiB");
        assert_eq!(duration(59), "59s");
        assert_eq!(duration(61), "1m01s");
        assert_eq!(duration(7260), "2h01m");
    }
}
