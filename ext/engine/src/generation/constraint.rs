//! What a text must look like, token by token.

use crate::Result;

pub trait Constraint: Send {
    /// The same at the same place, which goes on by itself.
    fn fork(&self) -> Box<dyn Constraint>;

    /// The tokens that may come next, bit `i % 32` of word `i / 32` standing for token `i`;
    /// `end_ids` are among them where the text may end, and only there.
    fn allowed(&mut self, end_ids: &[u32]) -> Result<Vec<u32>>;

    /// Tokens that are likely to come next, since the pattern leaves no choice of the text.
    fn forced(&mut self) -> Vec<u32>;

    /// Takes note of a token that was chosen among the allowed ones.
    fn accept(&mut self, token: u32) -> Result<()>;

    /// Whether the text is over, without waiting for the model to say so.
    fn is_satisfied(&mut self) -> bool;

    /// Whether the text would be right if it ended here.
    fn may_end(&mut self) -> bool;

    /// What a token adds to the text.
    fn bytes(&self, token: u32) -> &[u8];
}
