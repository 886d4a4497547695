//! Loaded into user-mode Linux (`LD_PRELOAD`): it sets the extended registers of its processes from a buffer of the size that
//! its kernel knew, and Linux takes nothing but all of them. Where there are more (AMX has 8 KiB), each guest died at the
//! first instruction of its first process.
//!
//! What is beyond that buffer keeps the values it has. Nothing else of `ptrace` is changed.

use std::cell::UnsafeCell;
use std::ffi::{c_long, c_uint, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{iovec, pid_t};

type Ptrace = unsafe extern "C" fn(c_uint, pid_t, *mut c_void, *mut c_void) -> c_long;

/// Of `elf.h`: extended states of x86.
const NT_X86_XSTATE: usize = 0x202;
/// More than any processor has, in bytes.
const MOST: usize = 64 << 10;

struct Room(UnsafeCell<[u8; MOST]>);

// SAFETY: one thread of user-mode Linux runs at a time, and none is interrupted by another within this call; a kernel
// thread's stack has no room for it.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new([0; MOST]));
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn next() -> Option<Ptrace> {
    let mut at = NEXT.load(Ordering::Relaxed);
    if at == 0 {
        // SAFETY: the name ends with a zero.
        at = unsafe { libc::dlsym(libc::RTLD_NEXT, c"ptrace".as_ptr()) } as usize;
        NEXT.store(at, Ordering::Relaxed);
    }
    // SAFETY: the C library's function of that name, whose variable arguments are passed like these.
    (at != 0).then(|| unsafe { transmute::<usize, Ptrace>(at) })
}

/// As the C library's, but that extended registers may be set from a buffer that is too short for all of them.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(request: c_uint, pid: pid_t, addr: *mut c_void, data: *mut c_void) -> c_long {
    let Some(next) = next() else { return -1 };
    // SAFETY: what the caller passes is passed on.
    let done = unsafe { next(request, pid, addr, data) };
    if done == 0 || request != libc::PTRACE_SETREGSET || addr as usize != NT_X86_XSTATE || data.is_null() {
        return done;
    }
    // SAFETY: for this request the caller passes a vector of readable bytes; the room is nobody else's in this call.
    unsafe {
        let own = *data.cast::<iovec>();
        let room = ROOM.0.get();
        let mut all = iovec { iov_base: room.cast(), iov_len: MOST };
        let vector = (&raw mut all).cast();
        if next(libc::PTRACE_GETREGSET, pid, addr, vector) != 0 || all.iov_len <= own.iov_len {
            return done;
        }
        std::ptr::copy_nonoverlapping(own.iov_base.cast::<u8>(), room.cast::<u8>(), own.iov_len);
        next(request, pid, addr, vector)
    }
}
