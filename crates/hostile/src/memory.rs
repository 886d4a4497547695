//! An allocator that counts what each thread holds, for programs that state a bound of memory.
//!
//! A program that wants the count says `#[global_allocator] static METER: Meter = Meter;`. A single request beyond
//! [`LARGEST`] fails, so that a number from a volume taken for a length ends the program instead of the machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes that one allocation may have.
pub const LARGEST: usize = 2 << 30;

thread_local! {
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// The allocator of the system, counted.
pub struct Meter;

fn count(bytes: isize) {
    // A thread that ends may free what it held after its count is gone.
    let _ = HELD.try_with(|held| {
        let (now, peak) = held.get();
        let now = now.wrapping_add(bytes);
        held.set((now, peak.max(now)));
    });
}

// SAFETY: every call goes on to the allocator of the system; the count neither allocates nor unwinds.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGEST {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGEST {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > LARGEST {
            return std::ptr::null_mut();
        }
        count(size as isize - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Begins a measurement on this thread: what is held now.
pub fn begin() -> isize {
    HELD.with(|held| {
        let now = held.get().0;
        held.set((now, now));
        now
    })
}

/// Bytes held at most beyond `begun` since then, on this thread.
pub fn peak(begun: isize) -> u64 {
    HELD.with(|held| u64::try_from(held.get().1.wrapping_sub(begun)).unwrap_or(0))
}
