//! Which of several GGUF files is meant, by their names.

/// From the best choice down: small enough for most machines before more precise, then the rest.
const QUANTIZATIONS: [&str; 21] = [
    "Q4_K_M", "Q4_K_S", "Q4_K_L", "Q4_K", "Q4_0", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_K", "Q5_0",
    "Q5_1", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16", "FP16", "F32",
];

pub fn is_gguf(name: &str) -> bool {
    name.len() > 5 && name.to_ascii_lowercase().ends_with(".gguf")
}

/// A file that holds a whole Whisper: OpenAI's, or whisper.cpp's.
pub fn is_whisper(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with(".pt") || (name.starts_with("ggml-") && name.ends_with(".bin"))
}

/// The name of one part of a split GGUF file: `…-00001-of-00003.gguf`.
pub struct Split<'a> {
    base: &'a str,
    number: usize,
    total: usize,
}

impl<'a> Split<'a> {
    pub fn parse(name: &'a str) -> Option<Self> {
        let stem = name.strip_suffix(".gguf")?;
        let (rest, total) = stem.rsplit_once("-of-")?;
        let (base, number) = rest.rsplit_once('-')?;
        let five_digits = |text: &str| -> Option<usize> {
            let fits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            fits.then(|| text.parse().ok()).flatten()
        };
        Some(Self {
            base,
            number: five_digits(number)?,
            total: five_digits(total)?,
        })
    }

    /// The names of all parts, in order.
    pub fn parts(&self) -> impl Iterator<Item = String> + '_ {
        (1..=self.total)
            .map(|number| format!("{}-{number:05}-of-{:05}.gguf", self.base, self.total))
    }
}

/// Projectors and importance matrices share the format but aren't language models.
fn is_companion(name: &str) -> bool {
    is_mmproj(name) || base(name).contains("imatrix")
}

/// The vision tower of a language model, which lies beside it.
pub fn is_mmproj(name: &str) -> bool {
    is_gguf(name) && base(name).contains("mmproj")
}

fn base(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase()
}

/// Of several towers that of 16 bits, which most were published in; else the one that loses least.
pub fn pick_mmproj(files: &[String]) -> Option<&str> {
    const PRECISIONS: [&str; 4] = ["bf16", "f16", "f32", "q8_0"];
    let rank = |name: &str| {
        let name = base(name);
        match PRECISIONS.iter().position(|kind| name.contains(kind)) {
            // The name of the one ends with that of the other.
            Some(0) => 1,
            Some(1) => 0,
            Some(other) => other,
            None => PRECISIONS.len(),
        }
    };
    let towers = files
        .iter()
        .map(String::as_str)
        .filter(|name| is_mmproj(name));
    towers.min_by_key(|name| (rank(name), name.len(), *name))
}

/// Language models among the files; a split one is represented by its first part.
pub fn candidates(files: &[String]) -> impl Iterator<Item = &str> {
    let is_first = |file: &str| Split::parse(file).is_none_or(|split| split.number == 1);
    files
        .iter()
        .map(String::as_str)
        .filter(move |file| is_first(file) && !is_companion(file))
}

/// One file before a split one.
pub fn pick_gguf(files: &[String]) -> Option<&str> {
    candidates(files)
        .min_by_key(|file| (rank(file), Split::parse(file).is_some(), file.len(), *file))
}

fn rank(name: &str) -> usize {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_uppercase();
    let is_word =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let names = |quantization: &str| {
        name.match_indices(quantization).any(|(start, found)| {
            let bytes = name.as_bytes();
            let before = start.checked_sub(1).and_then(|index| bytes.get(index));
            // `Q4_K` inside `IQ4_K` or `Q4_K_M` is another one; `model_Q4_K` is not.
            let starts = !before.is_some_and(u8::is_ascii_alphanumeric);
            starts && !is_word(bytes.get(start + found.len()))
        })
    };
    QUANTIZATIONS
        .iter()
        .position(|quantization| names(quantization))
        .unwrap_or(if name.contains("IQ") {
            usize::MAX
        } else {
            QUANTIZATIONS.len()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_middle_quantization_is_picked() {
        let files = names(&[
            "m.IQ4_XS.gguf",
            "m.Q2_K.gguf",
            "m.Q4_0.gguf",
            "m-q4_k_m.gguf",
            "m.Q4_K_S.gguf",
            "m.Q8_0.gguf",
        ]);
        assert_eq!(pick_gguf(&files), Some("m-q4_k_m.gguf"));
        assert_eq!(
            pick_gguf(&names(&["a.Q8_0.gguf", "a.Q5_K_M.gguf", "a.F16.gguf"])),
            Some("a.Q5_K_M.gguf")
        );
        assert_eq!(
            pick_gguf(&names(&["a.F16.gguf", "a.Q8_0.gguf"])),
            Some("a.Q8_0.gguf")
        );
        assert_eq!(pick_gguf(&names(&["only.gguf"])), Some("only.gguf"));
        assert_eq!(
            pick_gguf(&names(&["x/a-iq3_m.gguf", "x/model.gguf"])),
            Some("x/model.gguf")
        );
    }

    #[test]
    fn first_parts_stand_for_the_whole_and_companions_are_not_picked() {
        let files = names(&[
            "mmproj-Q4_K_M.gguf",
            "big-Q4_K_M-00001-of-00002.gguf",
            "big-Q4_K_M-00002-of-00002.gguf",
            "small-Q8_0.gguf",
        ]);
        assert_eq!(pick_gguf(&files), Some("big-Q4_K_M-00001-of-00002.gguf"));
        assert_eq!(pick_gguf(&files[..1]), None);
        assert_eq!(pick_gguf(&files[2..3]), None);
        let towers = names(&[
            "mmproj-m-bf16.gguf",
            "m-mmproj-Q8_0.gguf",
            "x/mmproj-m-F16.gguf",
            "m.gguf",
        ]);
        assert_eq!(pick_mmproj(&towers), Some("x/mmproj-m-F16.gguf"));
        assert_eq!(pick_mmproj(&towers[..2]), Some("mmproj-m-bf16.gguf"));
        assert_eq!(pick_mmproj(&towers[3..]), None);
        let both = names(&["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-whole.gguf"]);
        assert_eq!(pick_gguf(&both), Some("m-Q8_0-whole.gguf"));
    }
}
