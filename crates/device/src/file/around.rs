//! Reading what is around small reads, where that pays.
//!
//! Small things that were written together lie together in a log, and are often read together: metadata when a tree
//! is walked, files when they are copied or built. What is around a small read that has to wait for the medium is
//! brought into the page cache with it. How much follows, for each kind of reads, from how often later reads find there
//! what they want; where they do not, it ends, to be tried again now and then.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Kind;

/// Largest read in bytes that is small, and no part of a stream.
pub(super) const SMALL: usize = 64 << 10;
/// Bytes around a read of a file's data at first. Of files that are read in no order, what is found depends on how much of
/// them was fetched, so that a small window would long stay small.
const FIRST_OF_DATA: u64 = MOST;
/// Bytes around a read of a table at first: a mount reads a little of each, and what lies around that is not asked for.
const FIRST_OF_TABLES: u64 = AGAIN;
/// Bytes around a read of anything else at first.
const FIRST: u64 = 1 << 20;
/// Bytes around any when it is tried again; at least (less is none) and at most.
const AGAIN: u64 = 64 << 10;
const LEAST: u64 = 32 << 10;
const MOST: u64 = 4096 << 10;
/// Bytes that may be read for one read more that need not wait. Files may be read in any order, and what was fetched
/// is found late.
const WORTH: u64 = 128 << 10;
const WORTH_OF_DATA: u64 = 512 << 10;
/// Bytes that may be read in vain before less is: of what is read in no order nothing is found until a good part of it
/// was fetched.
const CREDIT: u64 = 16 << 20;
/// What was fetched is remembered in pieces of so many bits of offset, so many pieces, by their place.
const PIECE: u32 = 14;
const PIECES: usize = 8192;
/// Reads that wait between two looks at how it goes, or fewer where so many bytes were fetched with them.
const LOOK: u32 = 16;
const LOOK_BYTES: u64 = CREDIT;
/// Looks without reading more until it is tried again.
const REST: u32 = 16;
/// Kinds of reads, those for which nothing is fetched among them.
const KINDS: u64 = 6;

/// How it goes with reads of a kind. Counts race harmlessly.
struct Window {
    bytes: AtomicU64,
    credit: AtomicU64,
    found: AtomicU32,
    waited: AtomicU32,
    rested: AtomicU32,
}

/// See the module.
pub(super) struct Around {
    windows: [Window; KINDS as usize],
    /// Number of a fetched piece, plus one, and the kind of the read it was fetched for.
    fetched: Box<[AtomicU64]>,
}

impl Default for Around {
    fn default() -> Self {
        Around {
            windows: {
                let mut windows = std::array::from_fn(|_| Window::of(FIRST));
                windows[Kind::Data as usize] = Window::of(FIRST_OF_DATA);
                windows[Kind::Tables as usize] = Window::of(FIRST_OF_TABLES);
                windows
            },
            fetched: (0..PIECES).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Around {
    fn piece(&self, offset: u64) -> (&AtomicU64, u64) {
        let number = offset >> PIECE;
        (&self.fetched[(number % PIECES as u64) as usize], number + 1)
    }

    /// A small read found what it wanted: perhaps thanks to us, which counts once for each piece.
    pub fn found(&self, offset: u64) {
        self.take(offset);
    }

    /// Whether the piece was fetched and nobody has asked for it since.
    fn take(&self, offset: u64) -> bool {
        let (mark, number) = self.piece(offset);
        let marked = mark.load(Ordering::Relaxed);
        let fetched = marked / KINDS == number;
        if fetched {
            mark.store(0, Ordering::Relaxed);
            self.windows[(marked % KINDS) as usize].found.fetch_add(1, Ordering::Relaxed);
        }
        fetched
    }

    /// A small read of `len` bytes at `offset` has to wait: what to read with it, if anything.
    pub fn of(&self, kind: Kind, offset: u64, len: u64, size: u64) -> Option<Range<u64>> {
        if self.take(offset) {
            // It is on its way.
            return None;
        }
        let own = &self.windows[kind as usize];
        let waited = own.waited.fetch_add(1, Ordering::Relaxed) + 1;
        if waited >= LOOK || u64::from(waited) * own.bytes.load(Ordering::Relaxed) >= LOOK_BYTES {
            own.look(if kind == Kind::Data { WORTH_OF_DATA } else { WORTH });
        }
        let window = own.bytes.load(Ordering::Relaxed);
        if window < LEAST {
            return None;
        }
        let from = offset / window * window;
        let to = offset.saturating_add(len).div_ceil(window).saturating_mul(window).min(size);
        for at in (from..to).step_by(1 << PIECE) {
            let (mark, number) = self.piece(at);
            mark.store(number * KINDS + kind as u64, Ordering::Relaxed);
        }
        // What was asked for would have been read anyway.
        self.piece(offset).0.store(0, Ordering::Relaxed);
        Some(from..to)
    }
}

impl Window {
    fn of(bytes: u64) -> Self {
        let zero = || AtomicU32::new(0);
        let (bytes, credit) = (AtomicU64::new(bytes), AtomicU64::new(CREDIT));
        Window { bytes, credit, found: zero(), waited: zero(), rested: zero() }
    }

    fn look(&self, worth: u64) {
        let (found, waited) = (self.found.swap(0, Ordering::Relaxed), self.waited.swap(0, Ordering::Relaxed));
        let window = self.bytes.load(Ordering::Relaxed);
        let (gain, cost) = (u64::from(found) * worth, u64::from(waited) * window);
        let credit = self.credit.load(Ordering::Relaxed);
        let new = if window < LEAST {
            if self.rested.fetch_add(1, Ordering::Relaxed) + 1 < REST {
                return;
            }
            self.rested.store(0, Ordering::Relaxed);
            AGAIN
        } else if gain >= cost {
            self.credit.store((credit + gain - cost).min(CREDIT), Ordering::Relaxed);
            (window * 2).min(MOST)
        } else if gain < cost / 2 {
            if let Some(rest) = credit.checked_sub(cost - gain) {
                self.credit.store(rest, Ordering::Relaxed);
                return;
            }
            window / 2
        } else {
            return;
        };
        self.bytes.store(new, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind::Maps;
    const SIZE: u64 = 64 << 30;

    fn without_credit() -> Around {
        let around = Around::default();
        around.windows.iter().for_each(|w| w.credit.store(0, Ordering::Relaxed));
        around
    }

    #[test]
    fn it_grows_where_it_pays() {
        let around = Around::default();
        assert_eq!(around.of(KIND, 100_000, 4096, SIZE), Some(0..FIRST));
        assert_eq!(around.of(KIND, SIZE - 100, 100, SIZE), Some(SIZE - FIRST..SIZE));
        let mut at = MOST;
        for _ in 0..10 * LOOK {
            let range = around.of(KIND, at, 1, SIZE).unwrap();
            range.clone().step_by(4096).for_each(|at| around.found(at));
            at = range.end;
        }
        assert_eq!(around.of(KIND, SIZE / 2 + 1, 1, SIZE), Some(SIZE / 2..SIZE / 2 + MOST));
    }

    #[test]
    fn what_is_on_its_way_is_not_fetched_again() {
        let around = Around::default();
        assert_eq!(around.of(KIND, 0, 4096, SIZE), Some(0..FIRST));
        assert_eq!(around.of(KIND, FIRST / 2, 4096, SIZE), None, "fetched with the first");
        assert_eq!(around.windows[KIND as usize].found.load(Ordering::Relaxed), 1, "which pays");
        assert_eq!(around.of(KIND, FIRST / 2, 4096, SIZE), Some(0..FIRST), "it is gone again");
    }

    #[test]
    fn what_is_found_without_it_does_not_count() {
        let around = without_credit();
        let mut ended = false;
        for n in 0..20 * u64::from(LOOK) {
            (0..100).for_each(|other| around.found(SIZE / 2 + other * 4096));
            ended |= around.of(KIND, n * MOST, 1, SIZE).is_none();
            around.found(n * MOST);
        }
        assert!(ended);
    }

    #[test]
    fn it_ends_where_it_does_not_and_is_tried_again() {
        let around = without_credit();
        let widths: Vec<u64> = (0..20 * LOOK * REST)
            .map(|_| around.of(KIND, 0, 1, SIZE).map_or(0, |around| around.end - around.start))
            .collect();
        let (first, later) = widths.split_at(widths.len() / 2);
        let read = |widths: &[u64]| widths.iter().sum::<u64>();
        assert!(first.contains(&0) && read(first) < 48 << 20, "{}", read(first));
        assert!(later.contains(&AGAIN), "tried again");
        assert!(read(later) / (later.len() as u64) < 8 << 10, "{}", read(later));
    }

    #[test]
    fn kinds_do_not_speak_for_each_other() {
        let around = without_credit();
        let window = |kind| around.windows[kind as usize].bytes.load(Ordering::Relaxed);
        for n in 0..10 * u64::from(LOOK) {
            // Tables lie close together, directories far apart, each beside a table that is known.
            let at = around.of(Kind::Tables, SIZE / 2 + n * MOST, 1, SIZE).unwrap();
            at.step_by(4096).for_each(|at| around.found(at));
            around.of(Kind::Names, n * MOST, 1, SIZE);
        }
        assert_eq!((window(Kind::Tables), window(Kind::Names) < LEAST), (MOST, true));
        assert_eq!(window(Kind::Maps), FIRST);
    }

    /// Reads each 4 KiB of what is `len` bytes long once, in no order, up to `reads` of them: how many waited, and the bytes
    /// that were fetched.
    fn in_no_order(len: u64, reads: u64) -> (u64, u64) {
        let around = Around::default();
        let mut cached = std::collections::HashSet::new();
        let (mut waited, mut bytes) = (0, 0);
        let blocks = len >> 12;
        for n in 0..reads {
            // An odd factor goes round all of a power of two.
            let block = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks;
            if cached.contains(&block) {
                around.found(block << 12);
                continue;
            }
            waited += 1;
            cached.insert(block);
            if let Some(range) = around.of(Kind::Data, block << 12, 4096, len) {
                bytes += range.end - range.start;
                cached.extend(range.step_by(4096).map(|at| at >> 12));
            }
        }
        (waited, bytes)
    }

    #[test]
    fn what_is_read_whole_in_no_order_hardly_waits() {
        let (waited, _) = in_no_order(64 << 20, 1 << 14);
        assert!(waited < 40, "{waited} of 16384");
    }

    #[test]
    fn little_is_read_in_vain() {
        let (waited, bytes) = in_no_order(1 << 40, 20_000);
        assert!(waited > 19_000 && bytes < 2 * CREDIT + waited * (8 << 10), "{waited} waited, {bytes}");
        let (_, bytes) = in_no_order(1 << 40, 1000);
        assert!(bytes < 6 * CREDIT, "{bytes}");
    }

    /// Reading as much as can be again and again for a block in every fourth costs more than waiting for that one.
    #[test]
    fn a_wide_window_must_be_worth_its_width() {
        let around = without_credit();
        let window = &around.windows[KIND as usize].bytes;
        for (every, most) in [(1, 2 * WORTH), (4, AGAIN)] {
            window.store(MOST, Ordering::Relaxed);
            for n in 0..100 * u64::from(LOOK) {
                if let Some(range) = around.of(KIND, n * MOST, 1, SIZE)
                    && n % every == 0
                {
                    around.found(range.start + (20 << 10));
                }
            }
            assert_eq!(window.load(Ordering::Relaxed), most);
        }
    }
}
