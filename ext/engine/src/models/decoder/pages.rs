//! Which pages are in use, by how many, and what the idle ones hold: a tree of pages by their tokens, in
//! which a new sequence finds the beginning that others have read before it.

use std::collections::{BTreeSet, HashMap};

use super::state_memory::SavedState;
use kernels::paged::PAGE;

/// What keys and values depend on beside the tokens: the adapter and the rotation.
pub type Kind = (usize, usize);

pub struct PageBook {
    /// How many pages there may be.
    limit: usize,
    /// By page: how many sequences use it.
    users: Vec<u32>,
    /// By page: its place in the tree.
    place: Vec<Option<usize>>,
    /// Pages that nothing uses and nothing is kept in.
    free: BTreeSet<u32>,
    /// How many pages sequences use.
    used: usize,
    nodes: Vec<Option<Node>>,
    roots: HashMap<Kind, Vec<usize>>,
    clock: u64,
    /// What a saved state takes, in pages; 0 in a model whose layers keep none.
    state_pages: usize,
    /// How many pages the states of sequences take, and how many states are saved.
    charged: usize,
    saved: usize,
}

/// A page in the tree, below the one that comes before it in a text.
struct Node {
    page: u32,
    /// As many as a page has, or fewer in one that has no children.
    tokens: Vec<u32>,
    kind: Kind,
    parent: Option<usize>,
    children: Vec<usize>,
    used: u64,
    /// The state after these tokens.
    state: Option<SavedState>,
}

/// The beginning of a text that was found.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    /// Whole pages, which the finder now uses too.
    pub pages: Vec<u32>,
    /// A page of which so many of the first tokens are the text's; to be copied before it is written to.
    pub partly: Option<(u32, usize)>,
    /// The state after all of it, in a model whose layers keep one: it ends where a state was saved.
    pub state: Option<SavedState>,
    /// How many tokens of whole pages others have begun alike, in such a model: most without a state.
    pub common: usize,
}

impl PageBook {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            users: Vec::new(),
            place: Vec::new(),
            free: BTreeSet::new(),
            used: 0,
            nodes: Vec::new(),
            roots: HashMap::new(),
            clock: 0,
            state_pages: 0,
            charged: 0,
            saved: 0,
        }
    }

    /// The same for a model whose states take so many pages each.
    pub fn with_states(self, state_pages: usize) -> Self {
        Self {
            state_pages,
            ..self
        }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Pages that sequences use, and what their states take.
    pub fn used(&self) -> usize {
        self.used + self.charged
    }

    /// Pages and states of the prefix cache that no sequence uses.
    pub fn idle(&self) -> usize {
        self.users.len() - self.free.len() - self.used + self.saved * self.state_pages
    }

    /// What a saved state takes.
    pub fn state_size(&self) -> usize {
        self.state_pages
    }

    /// What all states take.
    pub fn state_pages(&self) -> usize {
        self.charged + self.saved * self.state_pages
    }

    /// Counts what the state of a sequence takes; false, and nothing is counted, where there is too little left.
    pub fn charge(&mut self, pages: usize) -> bool {
        let fits = self.evict_for(pages);
        self.charged += if fits { pages } else { 0 };
        fits
    }

    /// What such a state took.
    pub fn discharge(&mut self, pages: usize) {
        self.charged -= pages;
    }

    /// Evicts cached pages and saved states until so many more pages fit.
    fn evict_for(&mut self, pages: usize) -> bool {
        while self.used() + self.idle() + pages > self.limit {
            if self.forget_oldest().is_none() && !self.forget_state() {
                return false;
            }
        }
        true
    }

    /// Evicts the least recently used saved state among those of pages in use.
    fn forget_state(&mut self) -> bool {
        let nodes = self.nodes.iter_mut().flatten();
        let oldest = nodes.filter(|node| node.state.is_some());
        let Some(node) = oldest.min_by_key(|node| node.used) else {
            return false;
        };
        node.state = None;
        self.saved -= 1;
        true
    }

    /// A page for a sequence, the one behind `last` where that is free. Where none is left, the least
    /// recently used idle page is evicted.
    pub fn allocate(&mut self, last: Option<u32>) -> Option<u32> {
        if self.state_pages > 0 && !self.evict_for(1) {
            return None;
        }
        let behind = last.map(|last| last + 1);
        let page = match behind.filter(|page| self.free.contains(page)) {
            Some(page) => page,
            None if self.free.is_empty() && self.users.len() < self.limit => {
                self.users.push(0);
                self.place.push(None);
                (self.users.len() - 1) as u32
            }
            None => match self.free.first() {
                Some(&page) => page,
                None => self.forget_oldest()?,
            },
        };
        self.free.remove(&page);
        self.take(page);
        Some(page)
    }

    /// One sequence more uses a page.
    fn take(&mut self, page: u32) {
        let users = &mut self.users[page as usize];
        *users += 1;
        self.used += usize::from(*users == 1);
    }

    /// One sequence less uses a page.
    pub fn release(&mut self, page: u32) {
        let users = &mut self.users[page as usize];
        *users -= 1;
        if *users == 0 {
            self.used -= 1;
            if self.place[page as usize].is_none() {
                self.free.insert(page);
            }
        }
    }

    /// The longest beginning of `tokens` that is kept, and that a sequence can go on from.
    pub fn find(&mut self, kind: Kind, tokens: &[u32]) -> Found {
        self.clock += 1;
        let mut path = Vec::new();
        let mut parent = None;
        let mut rest = tokens;
        while let Some((node, common)) = self.best(self.below(kind, parent), rest) {
            path.push((node, common));
            if common < PAGE {
                break;
            }
            (parent, rest) = (Some(node), &rest[PAGE..]);
        }
        let mut found = Found::default();
        if self.state_pages > 0 {
            let whole = path.iter().filter(|(_, common)| *common == PAGE);
            found.common = whole.count() * PAGE;
            found.state = self.cut_to_state(&mut path);
        }
        for (node, common) in path {
            self.node_mut(node).used = self.clock;
            let page = self.node(node).page;
            if common < PAGE {
                found.partly = Some((page, common));
            } else {
                self.take(page);
                found.pages.push(page);
            }
        }
        found
    }

    /// Shortens a path to where a state was saved, and returns that.
    fn cut_to_state(&self, path: &mut Vec<(usize, usize)>) -> Option<SavedState> {
        while let Some(&(node, common)) = path.last() {
            let node = self.node(node);
            let whole = node.tokens.len() == common;
            if let Some(state) = node.state.as_ref().filter(|_| whole) {
                return Some(state.clone());
            }
            // Another page may end earlier, and have a state.
            let tokens = node.tokens[..common].to_vec();
            let others = self.below(node.kind, node.parent).iter().copied();
            let others = others.filter(|&other| {
                let other = self.node(other);
                other.state.is_some() && tokens.starts_with(&other.tokens)
            });
            path.pop();
            if let Some(other) = others.max_by_key(|&other| self.node(other).tokens.len()) {
                path.push((other, self.node(other).tokens.len()));
            }
        }
        None
    }

    /// Saves the state after `tokens`, whose pages are kept, as far as there is room for it.
    pub fn save(&mut self, kind: Kind, tokens: &[u32], state: SavedState) {
        let mut parent = None;
        for part in tokens.chunks(PAGE) {
            match self.exact(kind, parent, part) {
                Some(node) => parent = Some(node),
                None => return,
            }
        }
        let Some(page) = parent.map(|node| self.node(node).page) else {
            return;
        };
        // The eviction may take its own page.
        self.take(page);
        if self.evict_for(self.state_pages) {
            let node = self.place[page as usize].and_then(|node| self.nodes[node].as_mut());
            if let Some(node) = node {
                self.saved += usize::from(node.state.is_none());
                node.state = Some(state);
            }
        }
        self.release(page);
    }

    /// The page of just these tokens.
    fn exact(&self, kind: Kind, parent: Option<usize>, tokens: &[u32]) -> Option<usize> {
        let nodes = self.below(kind, parent).iter().copied();
        nodes
            .into_iter()
            .find(|&node| self.node(node).tokens == tokens)
    }

    /// Adds a sequence's pages to the prefix cache; a page that is cached already replaces the
    /// sequence's own. The first `passed` pages are not the sequence's any more: what follows is kept where
    /// they still are. A last page that is not full is kept only `finally`, since it is written to before.
    pub fn keep(
        &mut self,
        kind: Kind,
        tokens: &[u32],
        pages: &mut [u32],
        passed: usize,
        finally: bool,
    ) {
        self.clock += 1;
        let mut parent = None;
        for (at, (part, page)) in tokens.chunks(PAGE).zip(pages).enumerate() {
            if part.len() < PAGE && !finally {
                return;
            }
            let best = self.best(self.below(kind, parent), part);
            let kept = match self.state_pages {
                0 => best.filter(|&(_, common)| common == part.len()),
                // A state is that of all tokens of its page.
                _ => self
                    .exact(kind, parent, part)
                    .map(|node| (node, part.len())),
            };
            let node = match kept {
                Some((node, _)) => {
                    let kept = self.node(node).page;
                    if kept != *page && at >= passed {
                        self.take(kept);
                        self.release(std::mem::replace(page, kept));
                    }
                    node
                }
                None if at < passed || self.place[*page as usize].is_some() => return,
                None => {
                    // What goes on where a page that is not full ended, makes that one needless.
                    let shorter = best.filter(|&(node, common)| {
                        let node = self.node(node);
                        node.tokens.len() == common && node.state.is_none()
                    });
                    if let Some((node, _)) = shorter {
                        self.forget(node);
                    }
                    self.add(kind, parent, part, *page)
                }
            };
            self.node_mut(node).used = self.clock;
            if part.len() < PAGE || self.node(node).tokens.len() < PAGE {
                return;
            }
            parent = Some(node);
        }
    }

    /// Evicts every idle page.
    pub fn forget_idle(&mut self) {
        while let Some(page) = self.forget_oldest() {
            self.free.insert(page);
        }
    }

    fn node(&self, node: usize) -> &Node {
        self.nodes[node].as_ref().expect("a node of the tree")
    }

    fn node_mut(&mut self, node: usize) -> &mut Node {
        self.nodes[node].as_mut().expect("a node of the tree")
    }

    fn below(&self, kind: Kind, parent: Option<usize>) -> &[usize] {
        match parent {
            Some(parent) => &self.node(parent).children,
            None => self.roots.get(&kind).map_or(&[], Vec::as_slice),
        }
    }

    /// The node that has the most of `tokens` in common, and how many; none without any.
    fn best(&self, nodes: &[usize], tokens: &[u32]) -> Option<(usize, usize)> {
        let common = |node: usize| {
            let pairs = self.node(node).tokens.iter().zip(tokens);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let best = nodes.iter().map(|&node| (node, common(node)));
        best.max_by_key(|&(_, common)| common)
            .filter(|&(_, common)| common > 0)
    }

    fn add(&mut self, kind: Kind, parent: Option<usize>, tokens: &[u32], page: u32) -> usize {
        let node = Node {
            page,
            tokens: tokens.to_vec(),
            kind,
            parent,
            children: Vec::new(),
            used: self.clock,
            state: None,
        };
        let number = match self.nodes.iter().position(Option::is_none) {
            Some(vacant) => vacant,
            None => {
                self.nodes.push(None);
                self.nodes.len() - 1
            }
        };
        self.nodes[number] = Some(node);
        self.place[page as usize] = Some(number);
        match parent {
            Some(parent) => self.node_mut(parent).children.push(number),
            None => self.roots.entry(kind).or_default().push(number),
        }
        number
    }

    /// Takes a node without children out of the tree.
    fn forget(&mut self, number: usize) {
        let Some(node) = self.nodes[number].take() else {
            return;
        };
        self.saved -= usize::from(node.state.is_some());
        self.place[node.page as usize] = None;
        if self.users[node.page as usize] == 0 {
            self.free.insert(node.page);
        }
        let siblings = match node.parent {
            Some(parent) => &mut self.node_mut(parent).children,
            None => self.roots.entry(node.kind).or_default(),
        };
        siblings.retain(|&sibling| sibling != number);
        if node.parent.is_none() && self.roots.get(&node.kind).is_some_and(Vec::is_empty) {
            self.roots.remove(&node.kind);
        }
    }

    /// Evicts the least recently used idle page, and returns it. A page that others follow is evicted
    /// last: they are not found without it.
    fn forget_oldest(&mut self) -> Option<u32> {
        let idle = self.nodes.iter().enumerate().filter_map(|(number, node)| {
            let node = node.as_ref()?;
            let is_idle = self.users[node.page as usize] == 0;
            is_idle.then_some((!node.children.is_empty(), node.used, number, node.page))
        });
        let (_, _, number, page) = idle.min()?;
        self.forget_all(number);
        Some(page)
    }

    /// Takes a node and all below it out of the tree.
    fn forget_all(&mut self, number: usize) {
        let mut below = vec![number];
        let mut at = 0;
        while at < below.len() {
            below.extend_from_slice(&self.node(below[at]).children);
            at += 1;
        }
        for node in below.into_iter().rev() {
            self.forget(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = (0, 0);

    fn text(length: usize, seed: u32) -> Vec<u32> {
        (0..length as u32).map(|i| i * 7 + seed * 1000).collect()
    }

    fn write(book: &mut PageBook, tokens: &[u32]) -> Vec<u32> {
        let mut pages = Vec::new();
        for _ in tokens.chunks(PAGE) {
            pages.push(book.allocate(pages.last().copied()).unwrap());
        }
        pages
    }

    #[test]
    fn a_prefix_is_found_by_whole_pages_and_a_part_of_one() {
        let mut book = PageBook::new(8);
        let tokens = text(2 * PAGE + 10, 1);
        let mut pages = write(&mut book, &tokens);
        book.keep(KIND, &tokens, &mut pages, 0, false);
        assert_eq!(
            book.find(KIND, &tokens[..PAGE + 5]).partly,
            Some((pages[1], 5))
        );
        book.release(pages[0]);
        book.keep(KIND, &tokens, &mut pages, 0, true);
        pages.iter().for_each(|&page| book.release(page));
        assert_eq!((book.used(), book.idle()), (0, 3));
        let mut longer = tokens.clone();
        longer.extend([1, 2, 3]);
        let found = book.find(KIND, &longer);
        assert_eq!(found.pages, pages[..2]);
        assert_eq!(found.partly, Some((pages[2], 10)));
        assert_eq!((book.used(), book.idle()), (2, 1));
        assert_eq!(book.find((1, 0), &longer), Found::default());
        assert_eq!(book.find((0, 1), &longer), Found::default());
        assert_eq!(book.find(KIND, &text(5, 9)), Found::default());
    }

    #[test]
    fn two_that_read_the_same_end_up_with_one_copy() {
        let mut book = PageBook::new(8);
        let tokens = text(2 * PAGE, 1);
        let (mut first, mut second) = (write(&mut book, &tokens), write(&mut book, &tokens));
        book.keep(KIND, &tokens, &mut first, 0, false);
        book.keep(KIND, &tokens, &mut second, 0, false);
        assert_eq!(first, second);
        assert_eq!(book.used(), 2);
        first
            .iter()
            .chain(&second)
            .for_each(|&page| book.release(page));
        assert_eq!((book.used(), book.idle()), (0, 2));
    }

    #[test]
    fn the_least_recently_used_goes_first_and_used_pages_never() {
        let mut book = PageBook::new(3);
        let texts = [text(PAGE, 1), text(PAGE, 2), text(PAGE, 3)];
        for tokens in &texts {
            let mut pages = write(&mut book, tokens);
            book.keep(KIND, tokens, &mut pages, 0, true);
            book.release(pages[0]);
        }
        let used = book.find(KIND, &texts[0]).pages[0];
        let given = book.allocate(None).unwrap();
        assert_ne!(given, used);
        assert_eq!(book.find(KIND, &texts[1]), Found::default());
        assert!(book.allocate(None).is_some());
        assert_eq!(book.allocate(None), None);
        assert_eq!(book.find(KIND, &texts[0]).pages, [used]);
        book.release(used);
        book.release(used);
        book.forget_idle();
        assert_eq!((book.used(), book.idle()), (2, 0));
    }

    #[test]
    fn a_longer_page_replaces_its_prefix() {
        let mut book = PageBook::new(4);
        let tokens = text(20, 1);
        let mut short = write(&mut book, &tokens[..10]);
        book.keep(KIND, &tokens[..10], &mut short, 0, true);
        book.release(short[0]);
        let mut long = write(&mut book, &tokens);
        book.keep(KIND, &tokens, &mut long, 0, true);
        book.release(long[0]);
        assert_eq!(book.idle(), 1);
        assert_eq!(book.find(KIND, &tokens).partly, Some((long[0], 20)));
    }

    #[test]
    fn pages_that_a_text_has_passed_are_found_until_the_memory_is_wanted() {
        let mut book = PageBook::new(4);
        let tokens = text(4 * PAGE, 1);
        let mut pages = write(&mut book, &tokens[..3 * PAGE]);
        book.keep(KIND, &tokens[..3 * PAGE], &mut pages, 0, false);
        book.release(pages[0]);
        book.release(pages[1]);
        assert_eq!((book.used(), book.idle()), (1, 2));
        pages.push(book.allocate(None).unwrap());
        book.keep(KIND, &tokens, &mut pages, 2, false);
        assert_eq!(book.find(KIND, &tokens).pages, pages);
        pages.iter().for_each(|&page| book.release(page));
        // The oldest goes although others follow it, and they are not found any more.
        let given = book.allocate(None).unwrap();
        assert_eq!(given, pages[0]);
        assert_eq!(book.find(KIND, &tokens), Found::default());
        assert_eq!((book.used(), book.idle()), (3, 0));
        book.keep(KIND, &tokens, &mut pages, 2, true);
        assert_eq!(book.find(KIND, &tokens), Found::default());
    }
}
