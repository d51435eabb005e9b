//! Tokenizing beside computing: while a GPU computes on some texts, the processor tokenizes the next.

use std::ops::Range;
use std::panic::resume_unwind;
use std::thread::Builder;

use crate::{Device, Result};

/// How many texts a GPU begins with. Each part is twice as large as the one before, so that the device has something
/// to do soon and its batches are not small.
const FIRST: usize = 1024;
const MOST: usize = 4096;

/// Hands what `tokenize` makes of parts of 0..count to `compute`, in their order. On the CPU all are one part.
pub fn tokenize_ahead<T: Send>(
    count: usize,
    device: Device,
    tokenize: impl Fn(Range<usize>) -> Result<T> + Sync,
    mut compute: impl FnMut(Range<usize>, T) -> Result<()>,
) -> Result<()> {
    let mut size = if device.computes_on_threads() {
        count
    } else {
        FIRST
    };
    let mut range = 0..count.min(size);
    let mut tokens = tokenize(range.clone())?;
    while range.end < count {
        size = (2 * size).min(MOST);
        let next = range.end..count.min(range.end + size);
        let (computed, ahead) = beside(|| tokenize(next.clone()), || compute(range, tokens));
        computed?;
        (range, tokens) = (next, ahead?);
    }
    compute(range, tokens)
}

/// `work` on this thread, and `other` on another; after it where no thread can be started.
fn beside<R: Send, S>(other: impl Fn() -> R + Sync, work: impl FnOnce() -> S) -> (S, R) {
    std::thread::scope(|scope| {
        let thread = Builder::new().spawn_scoped(scope, &other);
        let done = work();
        let result = match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => other(),
        };
        (done, result)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::Error;

    #[test]
    fn the_next_part_is_tokenized_while_one_is_computed() {
        let (begins, begun) = channel();
        let begins = Mutex::new(begins);
        let tokenize = |range: Range<usize>| {
            begins.lock().unwrap().send(range.start).unwrap();
            Ok(range.clone())
        };
        let mut seen = Vec::new();
        let compute = |range: Range<usize>, tokens: Range<usize>| {
            assert_eq!(range, tokens);
            seen.push(range.clone());
            let wait = Duration::from_secs(20);
            let waited: Vec<usize> = begun.try_iter().collect();
            if range.end < 9000 && !waited.contains(&range.end) {
                assert_eq!(begun.recv_timeout(wait), Ok(range.end));
            }
            Ok(())
        };
        tokenize_ahead(9000, Device::Cuda(0), tokenize, compute).unwrap();
        let ends = [0, 1024, 3072, 7168, 9000];
        assert!(seen
            .iter()
            .cloned()
            .eq(ends.windows(2).map(|two| two[0]..two[1])));
    }

    #[test]
    fn the_cpu_gets_all_at_once_and_nothing_is_one_part() {
        for (count, device) in [(600, Device::Cpu), (0, Device::Cuda(0)), (0, Device::Cpu)] {
            let mut seen = Vec::new();
            let compute = |range: Range<usize>, ()| {
                seen.push(range);
                Ok(())
            };
            tokenize_ahead(count, device, |_| Ok(()), compute).unwrap();
            assert_eq!(seen.len(), 1);
            assert_eq!(seen[0], 0..count);
        }
    }

    #[test]
    fn the_first_failure_in_the_order_of_texts_is_the_result() {
        let check = |range: Range<usize>, bad: usize| {
            if range.contains(&bad) {
                return Err(Error::InvalidInput(bad.to_string()));
            }
            Ok(())
        };
        let run = |tokenized: usize, computed: usize| {
            let tokenize = |range| check(range, tokenized);
            let compute = |range, ()| check(range, computed);
            let result = tokenize_ahead(4000, Device::Cuda(0), tokenize, compute);
            result.map_err(|error| error.to_string())
        };
        assert_eq!(run(1500, 9000), Err("1500".to_owned()));
        assert_eq!(run(9000, 1500), Err("1500".to_owned()));
        assert_eq!(run(1500, 10), Err("10".to_owned()));
        assert_eq!(run(9000, 9000), Ok(()));
    }
}
