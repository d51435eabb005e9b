//! Frames between the seconds of a video, which MiniCPM-V's processor shows side by side on one canvas a second.

use super::processor::MOST_PIXELS;
use super::{Image, CHANNELS};
use crate::files::raw_config::RawConfig;
use crate::{Error, Result};

/// Pixels between two frames of a canvas.
const LINE: usize = 6;
/// No video has more frames that its seconds are divided into.
const MOST_FRAMES: f64 = (1 << 20) as f64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacks {
    /// Into how many parts a second is divided.
    parts: usize,
    /// How many frames are shown alone.
    most: usize,
}

/// What a model is shown as one picture.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown {
    /// One frame.
    Frame(usize),
    /// Frames on one canvas.
    Together(Vec<usize>),
}

impl Stacks {
    /// `None` where every frame is shown alone.
    pub fn read(raw: &RawConfig) -> Result<Option<Self>> {
        let parts = raw.opt_usize_in("stack_frames", 1..=64)?.unwrap_or(1);
        let most = raw.opt_usize_in("max_num_frames", 1..=1 << 16)?;
        Ok((parts > 1).then_some(Self {
            parts,
            most: most.unwrap_or(128),
        }))
    }

    /// Of so many frames, of which `rate` were taken in a second: the first of each second, and behind it the canvas of
    /// those within the second.
    pub fn shown(&self, count: usize, rate: f64) -> Result<Vec<Shown>> {
        let duration = count as f64 / rate;
        if duration.is_nan() || duration * self.parts as f64 > MOST_FRAMES {
            return Err(Error::InvalidInput(format!(
                "{count} frames at {rate} frames per second are too long a video"
            )));
        }
        let frame = |time: f64| ((time * rate) as usize).min(count.saturating_sub(1));
        let firsts = self.firsts(duration);
        let mut within = self.within(duration).into_iter().peekable();
        let mut shown = Vec::new();
        for (second, first) in firsts.into_iter().enumerate() {
            shown.push(Shown::Frame(frame(first)));
            let mut together = Vec::new();
            while let Some(time) = within.next_if(|&time| time < (second + 1) as f64) {
                together.push(frame(time));
            }
            if !together.is_empty() {
                shown.push(Shown::Together(together));
            }
        }
        Ok(shown)
    }

    /// The times of frames that are shown alone: every second, or as many as may be of every tenth of one.
    fn firsts(&self, duration: f64) -> Vec<f64> {
        if duration <= self.most as f64 {
            return (0..duration.ceil() as usize)
                .map(|second| second as f64)
                .collect();
        }
        let tenths = (duration / 0.1) as usize;
        let places = evenly(tenths, self.most);
        places.into_iter().map(|at| at as f64 / 10.0).collect()
    }

    /// The times of the other frames.
    fn within(&self, duration: f64) -> Vec<f64> {
        let parts = self.parts;
        let of_second =
            |second: usize| (1..parts).map(move |part| second as f64 + part as f64 / parts as f64);
        let all = (0..duration.ceil() as usize).flat_map(of_second);
        let all: Vec<f64> = all.filter(|&time| time < duration).collect();
        let places = evenly(all.len(), self.most * (parts - 1));
        places.into_iter().map(|at| all[at]).collect()
    }
}

/// At most so many of the first numbers, from the first to the last.
fn evenly(count: usize, most: usize) -> Vec<usize> {
    if count <= most {
        return (0..count).collect();
    }
    let last = count - 1;
    let step = last as f64 / (most.max(2) - 1) as f64;
    let place = |at: usize| {
        if at > 0 && at + 1 == most {
            last
        } else {
            (at as f64 * step) as usize
        }
    };
    (0..most).map(place).collect()
}

/// Frames of one size on a black canvas, in rows and columns whose proportions are nearest to a square's.
pub fn together(frames: &[&Image]) -> Result<Image> {
    let Some(first) = frames.first() else {
        return Err(Error::Internal("a canvas without frames".into()));
    };
    let (width, height) = (first.width(), first.height());
    let extent = |count: usize, edge: usize| count * edge + (count - 1) * LINE;
    let off = |&(rows, columns): &(usize, usize)| {
        let ratio = extent(columns, width) as f64 / extent(rows, height).max(1) as f64;
        (ratio - 1.0).abs()
    };
    let count = frames.len();
    let (wide, high) = ((1, count), (count, 1));
    let (rows, columns) = match count {
        4 => (2, 2),
        3 if off(&high) < off(&wide) => high,
        2 if off(&high) < off(&wide) || off(&high) == off(&wide) && width < height => high,
        _ => wide,
    };
    let (across, down) = (extent(columns, width), extent(rows, height));
    if across.saturating_mul(down) > MOST_PIXELS {
        return Err(Error::InvalidInput(format!(
            "{count} frames of {width}x{height} pixels are too large to be shown together"
        )));
    }
    let mut canvas = vec![0; across * down * CHANNELS];
    for (number, frame) in frames.iter().enumerate() {
        let (left, top) = (
            number % columns * (width + LINE),
            number / columns * (height + LINE),
        );
        for (y, row) in frame.pixels().chunks(width * CHANNELS).enumerate() {
            let at = ((top + y) * across + left) * CHANNELS;
            canvas[at..at + row.len()].copy_from_slice(row);
        }
    }
    Image::new(across, down, canvas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_within_a_second_stand_behind_its_first() {
        let stacks = Stacks { parts: 3, most: 8 };
        let shown = stacks.shown(7, 3.0).unwrap();
        let expected = [
            Shown::Frame(0),
            Shown::Together(vec![1, 2]),
            Shown::Frame(3),
            Shown::Together(vec![4, 5]),
            Shown::Frame(6),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn long_videos_have_as_many_frames_as_may_be() {
        let stacks = Stacks { parts: 2, most: 3 };
        let shown = stacks.shown(50, 10.0).unwrap();
        let alone = |shown: &Shown| matches!(shown, Shown::Frame(_));
        assert_eq!(shown.iter().filter(|shown| alone(shown)).count(), 3);
        assert_eq!(evenly(5, 3), [0, 2, 4]);
        assert_eq!(evenly(5, 1), [0]);
        for rate in [1e-9, f64::MIN_POSITIVE] {
            assert!(matches!(
                stacks.shown(50, rate),
                Err(Error::InvalidInput(_))
            ));
        }
    }

    #[test]
    fn canvases_are_as_square_as_may_be() {
        let sizes = |width: usize, height: usize, count: usize| {
            let frame = Image::new(width, height, vec![9; width * height * CHANNELS]).unwrap();
            let canvas = together(&vec![&frame; count]).unwrap();
            (canvas.width(), canvas.height())
        };
        assert_eq!(sizes(20, 10, 2), (20, 26));
        assert_eq!(sizes(10, 20, 2), (26, 20));
        assert_eq!(sizes(20, 10, 3), (20, 42));
        assert_eq!(sizes(10, 10, 4), (26, 26));
        assert_eq!(sizes(4, 4, 5), (44, 4));
    }
}
