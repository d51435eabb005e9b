//! Stop sequences in streamed text.

/// Passes text on as it comes, but holds back whatever may still become a stop sequence.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    sequences: Vec<String>,
    held: String,
}

#[derive(Debug, PartialEq, Eq)]
pub enum StopOutcome {
    /// Text that can be shown; possibly empty.
    Continue(String),
    /// The text before a stop sequence; generation ends.
    Stop(String),
}

impl StopMatcher {
    pub fn new(sequences: &[String]) -> Self {
        Self {
            sequences: sequences.to_vec(),
            held: String::new(),
        }
    }

    pub fn push(&mut self, text: &str) -> StopOutcome {
        self.held.push_str(text);
        let found = self
            .sequences
            .iter()
            .filter_map(|sequence| self.held.find(sequence.as_str()))
            .min();
        if let Some(start) = found {
            self.held.truncate(start);
            return StopOutcome::Stop(std::mem::take(&mut self.held));
        }
        let shown = self.held.len() - self.undecided();
        let rest = self.held.split_off(shown);
        StopOutcome::Continue(std::mem::replace(&mut self.held, rest))
    }

    /// What was held back, once no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of the held text that begins a stop sequence.
    fn undecided(&self) -> usize {
        let begun = |sequence: &String| {
            let ends = (1..sequence.len())
                .rev()
                .filter(|&end| sequence.is_char_boundary(end));
            { ends }.find(|&end| self.held.ends_with(&sequence[..end]))
        };
        self.sequences.iter().filter_map(begun).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(sequences: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let sequences: Vec<String> = sequences.iter().map(ToString::to_string).collect();
        let mut matcher = StopMatcher::new(&sequences);
        let mut shown = Vec::new();
        for piece in pieces {
            match matcher.push(piece) {
                StopOutcome::Continue(text) => shown.push(text),
                StopOutcome::Stop(text) => {
                    shown.push(text);
                    return (shown, true);
                }
            }
        }
        shown.push(matcher.finish());
        (shown, false)
    }

    #[test]
    fn a_sequence_over_several_pieces_is_never_shown_in_part() {
        let (shown, stopped) = run(&["</end>"], &["hello <", "/e", "nd", "> more"]);
        assert!(stopped);
        assert_eq!(shown, ["hello ", "", "", ""]);
    }

    #[test]
    fn a_false_start_is_shown_once_decided() {
        let (shown, stopped) = run(&["</end>"], &["a <", "/en", "vy"]);
        assert!(!stopped);
        assert_eq!(shown.concat(), "a </envy");
        assert_eq!(shown[0], "a ");
    }

    #[test]
    fn the_earliest_of_several_wins() {
        let (shown, stopped) = run(&["world", "lo w"], &["hello world"]);
        assert!(stopped);
        assert_eq!(shown.concat(), "hel");
    }

    #[test]
    fn characters_that_share_bytes_are_told_apart() {
        let (shown, stopped) = run(&["é"], &["è", "ê", "é!"]);
        assert!(stopped);
        assert_eq!(shown.concat(), "èê");
    }

    #[test]
    fn without_sequences_text_flows() {
        assert_eq!(run(&[], &["a", "b"]).0, ["a", "b", ""]);
    }
}
