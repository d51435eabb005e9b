//! Parts of a long text that are read by themselves.

use std::ops::Range;

/// Words that are read together: at most `words` of them, and `room` tokens. Neighbouring windows share words.
pub fn cut(tokens: &[usize], words: usize, room: usize, longest: usize) -> Vec<Range<usize>> {
    let mut windows = Vec::new();
    let mut start = 0;
    loop {
        let mut end = start;
        let mut filled = 0;
        while end < tokens.len() && end - start < words {
            // A word that no window has room for is read in part.
            let next = tokens[end].min(room);
            if filled + next > room {
                break;
            }
            filled += next;
            end += 1;
        }
        windows.push(start..end);
        if end >= tokens.len() {
            return windows;
        }
        let length = end - start;
        let shared = longest.max(length / 4).min(length / 2);
        start = (end - shared).max(start + 1);
    }
}

/// Whether the span is judged in this window: of those that hold it, in the one where it is farthest from a cut.
pub fn is_judged_in(
    windows: &[Range<usize>],
    at: usize,
    first: usize,
    last: usize,
    words: usize,
) -> bool {
    let distance = |window: &Range<usize>| -> Option<usize> {
        if first < window.start || last >= window.end {
            return None;
        }
        let before = if window.start == 0 {
            words
        } else {
            first - window.start
        };
        let after = if window.end == words {
            words
        } else {
            window.end - 1 - last
        };
        Some(before.min(after))
    };
    let best = windows
        .iter()
        .enumerate()
        .filter_map(|(number, window)| Some((distance(window)?, std::cmp::Reverse(number))))
        .max();
    best.is_some_and(|(_, std::cmp::Reverse(number))| number == at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_all_words_and_keep_to_their_limits() {
        for (count, words, room) in [
            (0, 5, 9),
            (40, 10, 100),
            (40, 100, 17),
            (7, 7, 7),
            (30, 1, 3),
        ] {
            let tokens: Vec<usize> = (0..count).map(|at| at % 4 + 1).collect();
            let windows = cut(&tokens, words, room, 3);
            let mut seen = vec![false; count];
            for window in &windows {
                assert!(window.len() <= words);
                let filled: usize = tokens[window.clone()].iter().map(|&n| n.min(room)).sum();
                assert!(filled <= room || window.len() == 1);
                seen[window.clone()]
                    .iter_mut()
                    .for_each(|seen| *seen = true);
            }
            assert!(seen.iter().all(|&seen| seen));
        }
    }

    #[test]
    fn every_span_inside_a_window_is_judged_once() {
        let windows = cut(&[1; 50], 12, 100, 4);
        for first in 0..50 {
            for last in first..50.min(first + 4) {
                let judges = (0..windows.len())
                    .filter(|&at| is_judged_in(&windows, at, first, last, 50))
                    .count();
                assert_eq!(judges, 1, "{first}..={last}");
            }
        }
    }
}
