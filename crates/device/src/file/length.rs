//! How long an image or a block device is; and that others make it shorter while it is in use.
//!
//! Nobody tells of that. A block device refuses what lies behind its end. An image would be made longer again by the next
//! write there, with zeroes where data was: so a flush looks at its length, and who asks for the host's space does, and a write
//! that would make it as long as before. From then on nothing behind the end that was found is read or written, also when the
//! image is longer again: what is there is not what was. Where a write of ours made it longer before that was found, what lies
//! between reads as zeroes. Reads and writes that succeed ask the system for nothing more.

use std::io;
use std::sync::atomic::Ordering;

use rustix::io::retry_on_intr;

use super::{FileDevice, Kind};
use crate::{Device as _, Error, Operation, Result, check_range, ioctl};

impl FileDevice {
    /// Makes an image `size` bytes long, the new part a hole. Errors: a block device, a `size`
    /// below the present one, a limit of the file system below.
    pub fn grow(&self, size: u64) -> Result<()> {
        if self.capabilities.read_only {
            return Err(Error::ReadOnly);
        }
        let unfit = |why| Error::of_path(&self.path, io::Error::new(io::ErrorKind::InvalidInput, why));
        if self.kind == Kind::Block {
            return Err(unfit("a block device cannot be made longer"));
        }
        if size < self.refresh_len()? {
            return Err(unfit("an image can only be made longer"));
        }
        self.set_size(size)
    }

    /// Cuts an image off at `size` bytes. Errors: a block device, a `size` above the present one.
    pub fn shrink(&self, size: u64) -> Result<()> {
        if self.capabilities.read_only {
            return Err(Error::ReadOnly);
        }
        let unfit = |why| Error::of_path(&self.path, io::Error::new(io::ErrorKind::InvalidInput, why));
        if self.kind == Kind::Block {
            return Err(unfit("a block device cannot be cut off"));
        }
        if size > self.refresh_len()? {
            return Err(unfit("the image is shorter than that"));
        }
        self.set_size(size)
    }

    /// Sets the size of an image, whatever it was.
    pub(crate) fn set_size(&self, size: u64) -> Result<()> {
        // What goes here is not to be taken for what others cut off.
        let before = self.len.fetch_min(size, Ordering::AcqRel);
        let set = retry_on_intr(|| rustix::fs::ftruncate(&self.main, size));
        set.map_err(|e| {
            self.len.store(before, Ordering::Release);
            Error::of_path(&self.path, e)
        })?;
        self.refresh_len().map(|_| ())
    }

    /// Its length as the system says.
    pub(super) fn length_now(&self) -> rustix::io::Result<u64> {
        match self.kind {
            Kind::Block => ioctl::block_size(&self.main),
            Kind::Image => rustix::fs::fstat(&self.main).map(|s| u64::try_from(s.st_size).unwrap_or(0)),
        }
    }

    /// How long it is, where that is less than it was found or made to be.
    pub(super) fn shorter(&self) -> Option<u64> {
        self.shorter_of(|| self.length_now().ok())
    }

    /// The same with the length that `look` brings.
    pub(super) fn shorter_of(&self, look: impl FnOnce() -> Option<u64>) -> Option<u64> {
        // Before and after: we may be changing it ourselves.
        let before = self.len();
        let now = look()?;
        if now >= before.min(self.len()) {
            return None;
        }
        if self.kind == Kind::Image {
            self.cut_at.fetch_min(now, Ordering::AcqRel);
        }
        Some(now)
    }

    pub(super) fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<()> {
        check_range(operation, offset, len, self.len())?;
        let size = self.cut_at.load(Ordering::Acquire);
        if offset + len > size { Err(Error::Shorter { operation, offset, len, size }) } else { Ok(()) }
    }

    pub(super) fn check_write(&self, operation: Operation, offset: u64, len: u64) -> Result<()> {
        if self.capabilities.read_only {
            return Err(Error::ReadOnly);
        }
        self.check(operation, offset, len)?;
        // After this one no flush would find it.
        if self.kind == Kind::Image && operation == Operation::Write && len > 0 && offset + len == self.len()
        {
            self.check_length(operation, offset, len)?;
        }
        Ok(())
    }

    /// An image of length `before` is `now` long: one that others cut off must not be taken for whole.
    pub(super) fn check_refreshed(&self, before: u64, now: u64) -> Result<()> {
        // We may be changing it ourselves.
        if self.kind == Kind::Block || now >= before.min(self.len()) {
            return Ok(());
        }
        self.cut_at.fetch_min(now, Ordering::AcqRel);
        Err(Error::Shorter { operation: Operation::Allocate, offset: 0, len: before, size: now })
    }

    /// Whether it is as long as it was.
    pub(super) fn check_length(&self, operation: Operation, offset: u64, len: u64) -> Result<()> {
        self.shorter().map_or(Ok(()), |size| Err(Error::Shorter { operation, offset, len, size }))
    }

    /// A request failed: as the system says, unless the device ends before the range by now.
    pub(super) fn failed(
        &self,
        operation: Operation,
        offset: u64,
        len: u64,
        e: impl Into<io::Error>,
    ) -> Error {
        match self.shorter() {
            Some(size) if offset + len > size => Error::Shorter { operation, offset, len, size },
            _ => Error::of_request(operation, offset, len, e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::OpenOptions as Files;

    use super::*;
    use crate::{OpenOptions, create_image, open};

    const MIB: u64 = 1 << 20;

    #[test]
    fn our_own_changes_of_the_length_are_no_loss() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = create_image(&path, 2 * MIB, false).unwrap();
        std::thread::scope(|scope| {
            let change = scope.spawn(|| {
                for _ in 0..500 {
                    device.shrink(MIB).unwrap();
                    device.grow(2 * MIB).unwrap();
                }
            });
            while !change.is_finished() {
                device.flush().unwrap();
            }
        });
        device.read_at(2 * MIB - 1, &mut [0]).unwrap();
        // Where that fails, it is as it was.
        assert!(device.set_size(u64::MAX / 2).is_err());
        assert_eq!(device.len(), 2 * MIB);
    }

    /// A resize asks for the length first.
    #[test]
    fn an_image_that_others_cut_off_is_not_taken_for_a_short_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = create_image(&path, 2 * MIB, false).unwrap();
        Files::new().write(true).open(&path).unwrap().set_len(MIB).unwrap();
        assert!(matches!(device.refresh_len(), Err(Error::Shorter { .. })));
        assert!(device.grow(4 * MIB).is_err() && device.shrink(MIB / 2).is_err());
        assert_eq!((device.len(), std::fs::metadata(&path).unwrap().len()), (2 * MIB, MIB));
    }

    /// Whatever finds it first, in either way of reading and writing.
    #[test]
    fn an_image_that_others_cut_off_is_told_of_and_never_made_longer() {
        for direct in [false, true] {
            for first in 0..4 {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("image");
                create_image(&path, 2 * MIB, false).unwrap().write_at(0, &[&[7; 2 << 20]]).unwrap();
                let options = OpenOptions { direct, ..OpenOptions::default() };
                let device = open(&path, crate::Access::ReadWrite, &options).unwrap();
                let file = Files::new().write(true).open(&path).unwrap();
                let length = || file.metadata().unwrap().len();
                file.set_len(MIB + 100).unwrap();
                let told = match first {
                    // A whole piece, a small one, a part: all of the range counts.
                    0 => device.read_at(MIB, &mut vec![0; 512 << 10]),
                    1 => device.read_at(MIB + 50, &mut [0; 100]),
                    // The system makes the image longer, and the flush says so.
                    2 => {
                        device.write_at(MIB + 65536, &[&[1; 4096]]).unwrap();
                        device.flush()
                    }
                    _ => device.write_at(2 * MIB - 4096, &[&[1; 4096]]),
                };
                let told = told.unwrap_err();
                assert!(matches!(told, Error::Shorter { .. }) && !told.is_no_space(), "{first}: {told}");
                let size = length();
                assert!(size < 2 * MIB);
                assert!(told.to_string().contains(&format!("is {size} bytes long now")), "{told}");
                // What is left can be had and changed; what is behind it cannot, and nothing is promised.
                device.write_at(4096, &[&[2; 4096]]).unwrap();
                device.read_at(MIB - 4096, &mut [0; 4096]).unwrap();
                assert!(device.write_at(size, &[&[1; 4096]]).is_err());
                assert!(device.write_durably(0, &[1; 4096]).is_err() && device.flush().is_err());
                assert_eq!(length(), size);
                // Nor when it is as long as before: that holds zeroes.
                file.set_len(2 * MIB).unwrap();
                let e = device.read_at(MIB + (512 << 10), &mut [0; 4096]).unwrap_err();
                assert!(matches!(e, Error::Shorter { .. }), "{e}");
                assert!(!device.lacks_large.load(Ordering::Relaxed), "that was not why");
            }
        }
    }
}
