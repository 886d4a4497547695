//! A loop device over an image, as the handle a `fuseblk` mount wants. Data never goes through
//! it: the image file itself is read and written.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
/// Detach by itself when nobody has it open any more.
const AUTOCLEAR: u32 = 4;

/// The kernel's `loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// The kernel's `loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// An attached loop device; it detaches when this and the mount on it are gone.
pub struct LoopHandle {
    _device: File,
    path: PathBuf,
}

impl LoopHandle {
    /// Attaches a free loop device to `image`.
    pub fn attach(image: &Path) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        let file = OpenOptions::new().read(true).write(true).open(image)?;
        // Another process may take the free one first: then there is another.
        for _ in 0..16 {
            // SAFETY: takes no argument and returns a number or -1.
            let n = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if n < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{n}"));
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            let config = Config {
                fd: u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?,
                block_size: 0,
                info: Info {
                    device: 0,
                    inode: 0,
                    rdevice: 0,
                    offset: 0,
                    size_limit: 0,
                    number: 0,
                    encrypt_type: 0,
                    encrypt_key_size: 0,
                    flags: AUTOCLEAR,
                    file_name: [0; 64],
                    crypt_name: [0; 64],
                    encrypt_key: [0; 32],
                    init: [0; 2],
                },
                reserved: [0; 8],
            };
            // SAFETY: LOOP_CONFIGURE reads one `loop_config`, laid out as the kernel's.
            let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
            if done == 0 {
                return Ok(LoopHandle { _device: device, path });
            }
            let e = io::Error::last_os_error();
            if e.raw_os_error() != Some(libc::EBUSY) {
                return Err(e);
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Its path, such as `/dev/loop3`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_size() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }
}
