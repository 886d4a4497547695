//! Error numbers as the kernel takes them in a reply.

use std::fmt;

/// An error number between 1 and 511.
///
/// The kernel refuses a reply whose error is outside that range and the caller would wait for ever, so the
/// range is kept here: whatever else is given becomes [`Errno::EIO`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

/// Declares the constants and the names for messages.
macro_rules! errnos {
    ($($name:ident: $text:literal,)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self(libc::$name);)*

            /// The symbol of the number, if it is one of the constants here.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM: "Not permitted, whoever asks.",
    ENOENT: "No such name.",
    EINTR: "Given up because of a signal.",
    EIO: "The device failed, or the request was never answered.",
    ENXIO: "No data at or behind the position.",
    E2BIG: "Too much given.",
    EBADF: "The handle does not serve this.",
    EAGAIN: "Would wait.",
    ENOMEM: "No memory.",
    EACCES: "Permission denied.",
    EBUSY: "In use.",
    EEXIST: "The name exists.",
    EXDEV: "Across file systems.",
    ENODEV: "No such device.",
    ENOTDIR: "Not a directory.",
    EISDIR: "A directory.",
    EINVAL: "Makes no sense.",
    ENFILE: "Too many open files in the system.",
    ENOTTY: "No such ioctl here.",
    ETXTBSY: "A running program.",
    EFBIG: "Beyond the largest file.",
    ENOSPC: "No space.",
    EROFS: "Read-only.",
    EMLINK: "Too many links.",
    ERANGE: "The buffer is too small.",
    EDEADLK: "Would deadlock.",
    ENAMETOOLONG: "The name is too long.",
    ENOSYS: "Not implemented; the kernel remembers it for many operations.",
    ENOTEMPTY: "The directory has entries.",
    ELOOP: "Too many symbolic links.",
    ENODATA: "No such attribute.",
    EOVERFLOW: "Does not fit the type.",
    EPROTO: "Broke the protocol.",
    EOPNOTSUPP: "Not supported on this file system.",
    ESTALE: "The file handle names nothing any more.",
    EDQUOT: "Over quota.",
    ECANCELED: "Cancelled.",
    ENOTCONN: "The daemon is gone.",
    ESHUTDOWN: "Shut down.",
    ETIMEDOUT: "Took too long.",
}

impl Errno {
    /// From a number as the C library has it; anything outside 1 to 511 is EIO.
    pub const fn from_raw(raw: i32) -> Self {
        if raw >= 1 && raw <= 511 { Self(raw) } else { Self(libc::EIO) }
    }

    /// The number, positive.
    pub const fn raw(self) -> i32 {
        self.0
    }
}

impl From<&std::io::Error> for Errno {
    fn from(error: &std::io::Error) -> Self {
        error.raw_os_error().map_or(Self::EIO, Self::from_raw)
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self::from(&error)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self::from_raw(error.raw_os_error())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_the_kernel_refuses_become_eio() {
        for raw in [0, -5, 512, 524, i32::MAX, i32::MIN] {
            assert_eq!(Errno::from_raw(raw), Errno::EIO, "{raw}");
        }
        assert_eq!(Errno::from_raw(2), Errno::ENOENT);
        assert_eq!(Errno::from_raw(511).raw(), 511);
    }

    #[test]
    fn errors_without_a_number_are_eio() {
        assert_eq!(Errno::from(std::io::Error::other("x")), Errno::EIO);
        assert_eq!(Errno::from(std::io::Error::from_raw_os_error(libc::ENOSPC)), Errno::ENOSPC);
        assert_eq!(format!("{:?}", Errno::ENOSPC), "ENOSPC");
    }
}
