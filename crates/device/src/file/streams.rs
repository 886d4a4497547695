//! Reading ahead of streams.
//!
//! Large reads that go on where another ended are a stream: what comes next is brought into the page cache before it
//! is asked for. The system's own reading ahead would know one stream a descriptor, and several threads read here.

use std::ops::Range;

use parking_lot::Mutex;

/// Bytes that are fetched before a stream comes to them, and how near reads must be to belong to one.
const STREAM: u64 = 4 << 20;
const NEAR: u64 = 1 << 20;
/// Streams that are known at a time.
const STREAMS: usize = 8;

/// See the module.
#[derive(Default)]
pub(super) struct Streams {
    /// The one used last comes first.
    streams: Mutex<[Stream; STREAMS]>,
}

/// Where a stream has come to.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// End of the furthest read.
    end: u64,
    /// Everything before this was asked for.
    fetched: u64,
}

impl Streams {
    /// A large read that has to wait ends at `end`, having begun at `offset`: what to fetch for those that will follow, if anything.
    pub fn beyond(&self, offset: u64, end: u64, size: u64) -> Option<Range<u64>> {
        let mut streams = self.streams.lock();
        let near = |s: &Stream| {
            s.end != 0 && offset.saturating_add(NEAR) >= s.end && offset <= s.fetched.saturating_add(NEAR)
        };
        let Some(at) = streams.iter().position(near) else {
            streams.rotate_right(1);
            streams[0] = Stream { end, fetched: end };
            return None;
        };
        streams[..=at].rotate_right(1);
        let stream = &mut streams[0];
        stream.end = stream.end.max(end);
        let from = stream.fetched.max(stream.end);
        let to = stream.end.saturating_add(STREAM).min(size);
        // In pieces worth a request.
        if to.saturating_sub(from) < STREAM / 4 {
            return None;
        }
        stream.fetched = to;
        Some(from..to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 4 << 30;

    #[test]
    fn streams_are_followed() {
        let streams = Streams::default();
        let piece = 128 << 10;
        let (mut fetched, mut requests) = (0, 0);
        for n in 0..100 {
            // Two streams and somebody who reads here and there.
            for begin in [0, SIZE / 2] {
                let at = begin + n * piece;
                if let Some(range) = streams.beyond(at, at + piece, SIZE) {
                    assert!(range.start >= at + piece && range.end <= at + piece + STREAM);
                    (fetched, requests) = (fetched + range.end - range.start, requests + 1);
                }
            }
            assert_eq!(streams.beyond(SIZE / 4 + n * STREAM, SIZE / 4 + n * STREAM + piece, SIZE), None);
        }
        assert!((2 * 99 * piece..2 * (99 * piece + STREAM)).contains(&fetched), "each byte once: {fetched}");
        assert!(requests < 40, "{requests}");
        assert_eq!(streams.beyond(SIZE - piece, SIZE, SIZE), None);
    }
}
