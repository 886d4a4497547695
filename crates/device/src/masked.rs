//! A wrapper that shows other bytes in some places, and lets nothing be written.

use crate::{Capabilities, Device, Error, Kind, Operation, Result, check_range};

/// Reads as the inner device does, but for the bytes laid over it. Nothing can be written, flushed or discarded.
pub struct Masked<D> {
    inner: D,
    /// (Byte offset, bytes), in no order; later ones lie above.
    over: Vec<(u64, Vec<u8>)>,
}

impl<D: Device> Masked<D> {
    /// Shows `over`, (byte offset, bytes) each, in place of what is there.
    pub fn new(inner: D, over: Vec<(u64, Vec<u8>)>) -> Self {
        Masked { inner, over }
    }
}

impl<D: Device> Device for Masked<D> {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn refresh_len(&self) -> Result<u64> {
        self.inner.refresh_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(Operation::Read, offset, buf.len() as u64, self.inner.len())?;
        let end = offset + buf.len() as u64;
        // What lies wholly below one of the masks need not be readable.
        let hidden = self.over.iter().any(|(at, bytes)| *at <= offset && end <= at + bytes.len() as u64);
        if !hidden {
            self.inner.read_at(offset, buf)?;
        }
        for (at, bytes) in &self.over {
            let (from, to) = (offset.max(*at), end.min(at + bytes.len() as u64));
            if from < to {
                // Both ranges lie within their buffers, whose lengths are those of memory.
                let (in_buf, in_mask, n) =
                    ((from - offset) as usize, (from - at) as usize, (to - from) as usize);
                buf[in_buf..in_buf + n].copy_from_slice(&bytes[in_mask..in_mask + n]);
            }
        }
        Ok(())
    }

    fn read_kind(&self, _: Kind, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_at(offset, buf)
    }

    fn write_at(&self, _: u64, _: &[&[u8]]) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn failed_flushes(&self) -> u64 {
        self.inner.failed_flushes()
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: true, ..self.inner.capabilities() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn masks_are_seen_and_nothing_is_written() {
        let inner = MemoryDevice::new(8192);
        inner.write_at(0, &[&[1; 8192]]).unwrap();
        let d = Masked::new(inner.fork(), vec![(1024, vec![2; 1024]), (8000, vec![3; 192])]);
        let mut buf = vec![0; 8192];
        d.read_at(0, &mut buf).unwrap();
        let expected: Vec<u8> = (0..8192)
            .map(|i| match i {
                1024..2048 => 2,
                8000.. => 3,
                _ => 1,
            })
            .collect();
        assert_eq!(buf, expected);
        let mut part = [0; 10];
        d.read_at(1020, &mut part).unwrap();
        assert_eq!(part, [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
        assert!(matches!(d.write_at(0, &[&[9]]), Err(Error::ReadOnly)));
        assert!(matches!(d.discard(0, 512), Err(Error::ReadOnly)) && d.capabilities().read_only);
        assert!(d.read_at(8190, &mut part).is_err());
    }
}
