//! A set of encoders, by number.

/// One bit for each encoder: every fence copies what came before it, and there are as many fences as encoders.
#[derive(Clone, Debug, Default)]
pub struct Encoders(Vec<u64>);

impl Encoders {
    pub fn insert(&mut self, encoder: u32) {
        let (word, bit) = Self::place(encoder);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    pub fn contains(&self, encoder: u32) -> bool {
        let (word, bit) = Self::place(encoder);
        self.0.get(word).is_some_and(|bits| bits & bit != 0)
    }

    pub fn unite(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (to, from) in self.0.iter_mut().zip(&other.0) {
            *to |= from;
        }
    }

    fn place(encoder: u32) -> (usize, u64) {
        ((encoder / 64) as usize, 1 << (encoder % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_was_put_in_and_what_others_held() {
        let mut one = Encoders::default();
        let mut other = Encoders::default();
        one.insert(3);
        other.insert(64);
        other.insert(1000);
        one.unite(&other);
        let held: Vec<u32> = (0..2000).filter(|&encoder| one.contains(encoder)).collect();
        assert_eq!(held, [3, 64, 1000]);
        assert!(!other.contains(3));
    }
}
