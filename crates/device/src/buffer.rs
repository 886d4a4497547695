//! Memory for large requests.
//!
//! A large request past the host's page cache goes to the device in pieces of memory, of which its queue holds so many (256 with
//! virtio, as many as 1 MiB has pages of 4 KiB). In one piece of physical memory a request is one, or a few, so that several are
//! under way at once, and small ones beside them need not wait.

use memmap2::{Advice, MmapMut};

/// Alignment that every device takes.
const PAGE: usize = 4096;
/// Largest request that is served from ordinary memory.
const SMALL: usize = 64 << 10;
/// What the system has in one piece, and its alignment, on most machines.
const HUGE: usize = 2 << 20;

/// Memory that is as large as its largest request, and made only once: a new one for each would be zeroed, and given back to
/// the system, each time. Above 64 KiB it takes 2 MiB, or the next multiple, where the system has pages of that size.
#[derive(Default)]
pub struct Buffer {
    small: Vec<u8>,
    large: Option<MmapMut>,
}

impl Buffer {
    /// So many bytes at least, aligned for requests of whole pages. What is in them is left from before.
    pub fn of(&mut self, len: usize) -> &mut [u8] {
        if len > SMALL && self.large.as_ref().is_none_or(|large| large.len() < len + HUGE) {
            self.large = map(len);
        }
        match &mut self.large {
            Some(large) if len > SMALL => aligned(large, HUGE),
            _ => {
                let least = len.max(SMALL) + PAGE;
                if self.small.len() < least {
                    self.small.resize(least, 0);
                }
                aligned(&mut self.small, PAGE)
            }
        }
    }
}

/// None where the system has no more.
fn map(len: usize) -> Option<MmapMut> {
    // Only what is touched takes memory.
    let map = MmapMut::map_anon(len.next_multiple_of(HUGE) + HUGE).ok()?;
    // As it comes where large pages are not to be had.
    let _ = map.advise(Advice::HugePage);
    Some(map)
}

/// All but fewer than `to` bytes.
fn aligned(bytes: &mut [u8], to: usize) -> &mut [u8] {
    // Where the offset cannot be told, what comes is not aligned, and goes another way.
    let start = Some(bytes.as_ptr().align_offset(to)).filter(|start| *start < to).unwrap_or(0);
    bytes.get_mut(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_large_enough_and_kept() {
        let mut buffer = Buffer::default();
        for len in [0, 1, 4096, SMALL, SMALL + 1, 1 << 20, 3 << 20, 5000, 1 << 20] {
            let bytes = buffer.of(len);
            assert!(bytes.len() >= len, "{len}");
            assert_eq!(bytes.as_ptr().align_offset(if len > SMALL { HUGE } else { PAGE }), 0, "{len}");
            bytes[..len].fill(7);
        }
        let before = buffer.of(3 << 20).as_ptr();
        assert_eq!(buffer.of(1 << 20).as_ptr(), before);
        assert_eq!(buffer.of(3 << 20)[0], 7);
    }
}
