//! An inverted index: which documents have a term, and how often or how much. Scored by BM25 or by a dot product.
//!
//! Scores are computed when they are asked for, since every document that comes or goes changes all of them.

use std::collections::{HashMap, HashSet};

use crate::{CancelToken, Error, Result};
use formats::text::words::terms;

/// Postings between two looks at the cancel token.
const LOOK: usize = 1 << 16;

/// The variants of BM25, as the literature names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    Robertson,
    Lucene,
    Atire,
    Bm25L,
    Bm25Plus,
}

impl Variant {
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "robertson" | "okapi" => Some(Self::Robertson),
            "lucene" => Some(Self::Lucene),
            "atire" => Some(Self::Atire),
            "bm25l" => Some(Self::Bm25L),
            "bm25+" | "bm25plus" => Some(Self::Bm25Plus),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Bm25 {
    pub variant: Variant,
    pub k1: f64,
    pub b: f64,
    pub delta: f64,
}

impl Bm25 {
    /// How much a term of so many of the documents counts.
    fn rarity(&self, with: f64, all: f64) -> f32 {
        let rarity = match self.variant {
            Variant::Robertson => ((all - with + 0.5) / (with + 0.5)).max(1.0).ln(),
            Variant::Lucene => (1.0 + (all - with + 0.5) / (with + 0.5)).ln(),
            Variant::Atire => (all / with).ln(),
            Variant::Bm25L => ((all + 1.0) / (with + 0.5)).ln(),
            Variant::Bm25Plus => ((all + 1.0) / with).ln(),
        };
        rarity as f32
    }

    /// What a term that occurs `count` times adds in a document of `length` terms.
    fn weight(&self, count: f64, length: f64, mean: f64) -> f64 {
        let Self { k1, b, delta, .. } = *self;
        let size = 1.0 - b + b * length / mean;
        match self.variant {
            Variant::Robertson | Variant::Lucene => count / (k1 * size + count),
            Variant::Atire => count * (k1 + 1.0) / (count + k1 * size),
            Variant::Bm25L => {
                let count = count / size;
                (k1 + 1.0) * (count + delta) / (k1 + count + delta)
            }
            Variant::Bm25Plus => (k1 + 1.0) * count / (k1 * size + count) + delta,
        }
    }

    /// Whether terms that are not in a document count too.
    fn counts_absence(&self) -> bool {
        matches!(self.variant, Variant::Bm25L | Variant::Bm25Plus)
    }
}

/// Documents by number, with weights of terms that are numbers themselves.
#[derive(Debug, Default)]
struct Postings {
    lists: HashMap<u32, Vec<(u32, f32)>>,
    /// How many of a list's documents are still there.
    frequencies: HashMap<u32, usize>,
    present: Vec<bool>,
}

impl Postings {
    fn is_present(&self, number: u32) -> bool {
        self.present.get(number as usize).copied().unwrap_or(false)
    }

    fn add(&mut self, number: u32, weights: impl Iterator<Item = (u32, f32)>) -> Result<()> {
        let at = number as usize;
        if at >= self.present.len() {
            let more = at + 1 - self.present.len();
            self.present.try_reserve(more).map_err(|_| no_memory())?;
            self.present.resize(at + 1, false);
        }
        self.present[at] = true;
        for (term, weight) in weights {
            let list = self.lists.entry(term).or_default();
            list.try_reserve(1).map_err(|_| no_memory())?;
            list.push((number, weight));
            *self.frequencies.entry(term).or_default() += 1;
        }
        Ok(())
    }

    /// Numbers are never used again, so that postings of what is gone may stay.
    fn remove(&mut self, number: u32, terms: impl Iterator<Item = u32>) {
        if !self.is_present(number) {
            return;
        }
        self.present[number as usize] = false;
        for term in terms {
            if let Some(count) = self.frequencies.get_mut(&term) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

fn no_memory() -> Error {
    Error::OutOfMemory("not enough memory for more terms of an index".to_owned())
}

/// Which documents may be found, by number; all where there is nothing.
pub type Allowed<'a> = Option<&'a [u8]>;

/// The sums of a search.
struct Sums<'a> {
    postings: &'a Postings,
    allowed: Allowed<'a>,
    scores: Vec<f32>,
    met: Vec<bool>,
}

impl<'a> Sums<'a> {
    fn new(postings: &'a Postings, allowed: Allowed<'a>) -> Self {
        Self {
            scores: vec![0.0; postings.present.len()],
            met: vec![false; postings.present.len()],
            postings,
            allowed,
        }
    }

    fn add(
        &mut self,
        term: u32,
        cancel: &CancelToken,
        score: impl Fn(u32, f32) -> f32,
    ) -> Result<()> {
        let Some(list) = self.postings.lists.get(&term) else {
            return Ok(());
        };
        for part in list.chunks(LOOK) {
            cancel.check()?;
            for &(number, weight) in part
                .iter()
                .filter(|(number, _)| self.postings.is_present(*number))
            {
                self.scores[number as usize] += score(number, weight);
                self.met[number as usize] = true;
            }
        }
        Ok(())
    }

    /// The best documents that have one of the terms, the earlier one where they are equal.
    fn best(self, most: usize, offset: f32) -> Vec<(u32, f32)> {
        let allowed = |number: usize| {
            let flag = self
                .allowed
                .map(|flags| flags.get(number).copied().unwrap_or(0));
            flag.is_none_or(|flag| flag != 0)
        };
        let found = self.scores.iter().enumerate();
        let mut found: Vec<(u32, f32)> = found
            .filter(|(number, score)| self.met[*number] && allowed(*number) && !score.is_nan())
            .map(|(number, &score)| (number as u32, score + offset))
            .collect();
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if found.len() > most && most > 0 {
            found.select_nth_unstable_by(most - 1, order);
            found.truncate(most);
        }
        found.sort_by(order);
        found.truncate(most);
        found
    }
}

/// Texts by number, searched by their words.
#[derive(Debug, Default)]
pub struct TermIndex {
    postings: Postings,
    vocabulary: HashMap<Box<str>, u32>,
    /// How many terms each document has.
    lengths: Vec<u32>,
    documents: usize,
    total: u64,
    ignored: HashSet<String>,
}

impl TermIndex {
    /// `ignored` words are never terms.
    pub fn new(ignored: impl IntoIterator<Item = String>) -> Self {
        Self {
            ignored: ignored.into_iter().collect(),
            ..Self::default()
        }
    }

    fn terms(&self, text: &str) -> Vec<String> {
        let mut terms = terms(text);
        terms.retain(|term| !self.ignored.contains(term));
        terms
    }

    /// Every number is added once.
    pub fn add(&mut self, number: u32, text: &str) -> Result<()> {
        let terms = self.terms(text);
        let mut counts: Vec<(u32, f32)> = Vec::new();
        let mut places: HashMap<u32, usize> = HashMap::new();
        for term in &terms {
            let next = u32::try_from(self.vocabulary.len()).map_err(|_| no_memory())?;
            let id = match self.vocabulary.get(term.as_str()) {
                Some(&id) => id,
                None => *self.vocabulary.entry(term.as_str().into()).or_insert(next),
            };
            match places.get(&id) {
                Some(&at) => counts[at].1 += 1.0,
                None => {
                    places.insert(id, counts.len());
                    counts.push((id, 1.0));
                }
            }
        }
        self.postings.add(number, counts.into_iter())?;
        self.lengths.resize(self.postings.present.len(), 0);
        self.lengths[number as usize] = u32::try_from(terms.len()).unwrap_or(u32::MAX);
        self.documents += 1;
        self.total += terms.len() as u64;
        Ok(())
    }

    /// `text` is what was added by this number.
    pub fn remove(&mut self, number: u32, text: &str) {
        if !self.postings.is_present(number) {
            return;
        }
        let terms: HashSet<String> = self.terms(text).into_iter().collect();
        let known = terms
            .iter()
            .filter_map(|term| self.vocabulary.get(term.as_str()).copied());
        let known: Vec<u32> = known.collect();
        self.total -= u64::from(self.lengths[number as usize]);
        self.postings.remove(number, known.into_iter());
        self.documents -= 1;
    }

    /// Numbers and scores of the best documents.
    pub fn search(
        &self,
        text: &str,
        most: usize,
        allowed: Allowed<'_>,
        bm25: &Bm25,
        cancel: &CancelToken,
    ) -> Result<Vec<(u32, f32)>> {
        let mean = self.total as f64 / self.documents.max(1) as f64;
        let all = self.documents as f64;
        let mut sums = Sums::new(&self.postings, allowed);
        let mut absence = 0f32;
        for term in self.terms(text) {
            let Some(&id) = self.vocabulary.get(term.as_str()) else {
                continue;
            };
            let with = self.postings.frequencies.get(&id).copied().unwrap_or(0);
            if with == 0 {
                continue;
            }
            let rarity = bm25.rarity(with as f64, all);
            let absent = if bm25.counts_absence() {
                (f64::from(rarity) * bm25.weight(0.0, mean, mean)) as f32
            } else {
                0.0
            };
            absence += absent;
            sums.add(id, cancel, |number, count| {
                let length = f64::from(self.lengths[number as usize]);
                let weight = bm25.weight(f64::from(count), length, mean);
                (f64::from(rarity) * weight - f64::from(absent)) as f32
            })?;
        }
        Ok(sums.best(most, absence))
    }
}

/// Sparse vectors by number, searched by dot products.
#[derive(Debug, Default)]
pub struct WeightIndex {
    postings: Postings,
}

impl WeightIndex {
    pub fn add(&mut self, number: u32, weights: &[(u32, f32)]) -> Result<()> {
        if let Some((term, _)) = weights.iter().find(|(_, weight)| !weight.is_finite()) {
            return Err(Error::InvalidInput(format!(
                "the weight of term {term} in a sparse vector isn't a finite number"
            )));
        }
        self.postings.add(number, weights.iter().copied())
    }

    pub fn remove(&mut self, number: u32) {
        self.postings.remove(number, std::iter::empty());
    }

    pub fn search(
        &self,
        weights: &[(u32, f32)],
        most: usize,
        allowed: Allowed<'_>,
        cancel: &CancelToken,
    ) -> Result<Vec<(u32, f32)>> {
        let mut sums = Sums::new(&self.postings, allowed);
        for &(term, weight) in weights {
            sums.add(term, cancel, |_, own| own * weight)?;
        }
        Ok(sums.best(most, 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LUCENE: Bm25 = Bm25 {
        variant: Variant::Lucene,
        k1: 1.5,
        b: 0.75,
        delta: 0.5,
    };

    fn index(texts: &[&str]) -> TermIndex {
        let mut index = TermIndex::new(["the".to_owned()]);
        for (number, text) in texts.iter().enumerate() {
            index.add(number as u32, text).unwrap();
        }
        index
    }

    fn found(index: &TermIndex, text: &str, allowed: Allowed<'_>) -> Vec<(u32, f32)> {
        index
            .search(text, 10, allowed, &LUCENE, &CancelToken::new())
            .unwrap()
    }

    #[test]
    fn what_was_removed_counts_for_nothing() {
        let mut with = index(&["the quick fox", "a lazy dog dog", "quick quick dog"]);
        with.remove(1, "a lazy dog dog");
        let without = {
            let mut without = TermIndex::new(["the".to_owned()]);
            without.add(0, "the quick fox").unwrap();
            without.add(2, "quick quick dog").unwrap();
            without
        };
        assert_eq!(
            found(&with, "quick dog the", None),
            found(&without, "quick dog the", None)
        );
        assert!(found(&with, "lazy", None).is_empty());
    }

    #[test]
    fn only_what_is_allowed_is_found() {
        let index = index(&["fox dog", "fox", "dog"]);
        let numbers = |found: Vec<(u32, f32)>| {
            found
                .into_iter()
                .map(|(number, _)| number)
                .collect::<Vec<_>>()
        };
        assert_eq!(numbers(found(&index, "fox", Some(&[1, 0, 1]))), [0]);
        assert!(found(&index, "fox", Some(&[0])).is_empty());
        assert_eq!(numbers(found(&index, "fox", None)), [1, 0]);
    }

    #[test]
    fn sparse_vectors_are_multiplied() {
        let mut index = WeightIndex::default();
        index.add(0, &[(5, 1.0), (7, 2.0)]).unwrap();
        index.add(3, &[(7, 3.0)]).unwrap();
        let cancel = CancelToken::new();
        let found = index
            .search(&[(7, 0.5), (9, 4.0)], 5, None, &cancel)
            .unwrap();
        assert_eq!(found, [(3, 1.5), (0, 1.0)]);
        index.remove(3);
        assert_eq!(
            index.search(&[(7, 1.0)], 5, None, &cancel).unwrap(),
            [(0, 2.0)]
        );
        assert!(index.add(4, &[(1, f32::NAN)]).is_err());
    }
}
