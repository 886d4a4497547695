//! Whole transfers out of system calls that may stop short: interrupted calls are repeated,
//! partial ones continued, gathered ones split at the kernel's limit of buffers.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, IoSlice, IoSliceMut, ReadWriteFlags, retry_on_intr};

/// Most buffers the kernel takes in one gathered request.
pub(super) const IOV_MAX: usize = 1024;

/// Fills `buf` from `offset`. A file that ends earlier is an error.
pub(super) fn read_at(fd: BorrowedFd<'_>, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
    while !buf.is_empty() {
        let n = retry_on_intr(|| rustix::io::pread(fd, &mut *buf, offset))?;
        if n == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter"));
        }
        offset += n as u64;
        buf = &mut buf[n..];
    }
    Ok(())
}

/// Like `read_at` for what is in the page cache; `Ok(false)` when that is not all of it, and
/// `Err(EOPNOTSUPP)` where the file system cannot tell.
pub(super) fn read_cached(fd: BorrowedFd<'_>, mut offset: u64, mut buf: &mut [u8]) -> Result<bool, Errno> {
    while !buf.is_empty() {
        let read = retry_on_intr(|| {
            rustix::io::preadv2(fd, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT)
        });
        match read {
            // The ordinary read says what is wrong with a file that has become shorter.
            Ok(0) | Err(Errno::AGAIN) => return Ok(false),
            Ok(n) => {
                offset += n as u64;
                buf = &mut buf[n..];
            }
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// Writes all the buffers one behind the other from `offset`. `flags` may ask for durability.
pub(super) fn write_at(
    fd: BorrowedFd<'_>,
    offset: u64,
    bufs: &[&[u8]],
    flags: ReadWriteFlags,
) -> io::Result<()> {
    write_with(offset, bufs, |window, offset| {
        if flags.is_empty() {
            rustix::io::pwritev(fd, window, offset)
        } else {
            rustix::io::pwritev2(fd, window, offset, flags)
        }
    })
}

/// `write_at` over any call that writes up to `IOV_MAX` buffers and says how many bytes it took.
fn write_with(
    mut offset: u64,
    bufs: &[&[u8]],
    mut call: impl FnMut(&[IoSlice<'_>], u64) -> Result<usize, Errno>,
) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> =
        bufs.iter().filter(|b| !b.is_empty()).map(|b| IoSlice::new(b)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let window = &rest[..rest.len().min(IOV_MAX)];
        let n = retry_on_intr(|| call(window, offset))?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        offset += n as u64;
        IoSlice::advance_slices(&mut rest, n);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A target that takes at most `limit` bytes a call and is interrupted every other time.
    fn run(bufs: &[&[u8]], limit: usize) -> (Vec<u8>, usize) {
        let mut store = Vec::new();
        let mut calls = 0;
        write_with(100, bufs, |window, offset| {
            calls += 1;
            if calls % 2 == 0 {
                return Err(Errno::INTR);
            }
            assert!(window.len() <= IOV_MAX);
            assert_eq!(offset, 100 + store.len() as u64);
            let before = store.len();
            for slice in window {
                let n = slice.len().min(limit - (store.len() - before));
                store.extend_from_slice(&slice[..n]);
            }
            Ok(store.len() - before)
        })
        .unwrap();
        (store, calls)
    }

    #[test]
    fn short_writes_are_continued() {
        let bufs: [&[u8]; 4] = [b"abc", b"", b"defgh", b"i"];
        for limit in 1..10 {
            assert_eq!(run(&bufs, limit).0, b"abcdefghi");
        }
    }

    #[test]
    fn many_buffers_are_split() {
        let bytes: Vec<u8> = (0..3000).map(|i| (i % 251) as u8).collect();
        let bufs: Vec<&[u8]> = bytes.chunks(1).collect();
        let (store, calls) = run(&bufs, usize::MAX);
        assert_eq!(store, bytes);
        assert_eq!(calls, 5, "three requests, two interruptions");
    }

    #[test]
    fn errors_and_stalls_end_it() {
        assert!(write_with(0, &[b"a"], |_, _| Err(Errno::IO)).is_err());
        let stalled = write_with(0, &[b"a"], |_, _| Ok(0)).unwrap_err();
        assert_eq!(stalled.kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn a_shorter_file_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10).unwrap();
        let mut buf = [1; 11];
        let e = read_at(file.as_fd(), 0, &mut buf).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
        assert!(read_at(file.as_fd(), 0, &mut buf[..10]).is_ok());
    }
}
