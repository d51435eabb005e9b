//! File patterns with `*` (any text, slashes too) and `?` (any one character).

pub fn is_wild(pattern: &str) -> bool {
    pattern.contains(['*', '?'])
}

/// Linear in both: only the latest `*` is ever widened.
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(&c) if c == '?' || Some(&c) == text.get(t) => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    p = after;
                    t = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_python() {
        assert!(matches("*.json", "config.json") && matches("*.json", "1_Pooling/config.json"));
        assert!(matches(
            "model-0000?-of-*.safetensors",
            "model-00001-of-00002.safetensors"
        ));
        assert!(
            matches("*a*b", "xaxab") && matches("config.json", "config.json") && matches("*", "")
        );
        assert!(
            !matches("*.json", "config.jsonl")
                && !matches("config", "config.json")
                && !matches("?", "")
        );
    }
}
