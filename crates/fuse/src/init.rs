//! INIT: what kernel and daemon agree on.
//!
//! ```text
//! kernel major 8+: answer our major alone, the kernel asks again   | 7.0 to 7.30: EPROTO   | 7.31+: agree
//! ```

use crate::abi::{
    InitFlags, InitIn, InitInExt, InitOut, VERSION_MAJOR, VERSION_MINOR_MAX, VERSION_MINOR_MIN,
};
use crate::request::{Body, Malformed};

/// The largest write (and read buffer) in bytes.
pub const MAX_WRITE: u32 = 1 << 20;
/// Requests that the kernel sends without waiting for their answers, as [`Config::max_background`] begins.
pub const MAX_BACKGROUND: u16 = 64;
/// The largest write of a kernel without `MAX_PAGES`, in bytes.
const MAX_WRITE_PLAIN: u32 = 128 << 10;

/// What the kernel says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Major protocol version.
    pub major: u32,
    /// Minor protocol version.
    pub minor: u32,
    /// What it offers.
    pub flags: InitFlags,
    /// The read-ahead it would do, in bytes.
    pub max_readahead: u32,
}

/// What the file system wants. Starts with what suits every file system; [`Filesystem::init`] changes it.
///
/// [`Filesystem::init`]: crate::Filesystem::init
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What is asked for. Bits the kernel does not offer, or this crate does not implement, are dropped.
    pub flags: InitFlags,
    /// The largest write in bytes; at most [`MAX_WRITE`], at least one page.
    pub max_write: u32,
    /// The read-ahead in bytes; at most what the kernel offered.
    pub max_readahead: u32,
    /// How many background requests (read-ahead, write-back, asynchronous direct I/O) may be under way.
    pub max_background: u16,
    /// From how many background requests on the kernel takes the device for congested.
    pub congestion_threshold: u16,
    /// The resolution of times in nanoseconds: 1, or a power of ten up to a second.
    pub time_gran: u32,
    offered: InitFlags,
}

impl Config {
    fn new(kernel: &KernelInfo) -> Self {
        let usual = InitFlags::ASYNC_READ
            | InitFlags::BIG_WRITES
            | InitFlags::IOCTL_DIR
            | InitFlags::ASYNC_DIO
            | InitFlags::PARALLEL_DIROPS
            | InitFlags::NO_OPEN_SUPPORT
            | InitFlags::NO_OPENDIR_SUPPORT
            | InitFlags::HAS_EXPIRE_ONLY;
        Self {
            flags: usual & kernel.flags,
            max_write: MAX_WRITE,
            max_readahead: kernel.max_readahead,
            max_background: MAX_BACKGROUND,
            congestion_threshold: 48,
            time_gran: 1,
            offered: kernel.flags,
        }
    }

    /// Asks for `flags`; returns those that cannot be had.
    pub fn want(&mut self, flags: InitFlags) -> InitFlags {
        let can = flags & self.offered & InitFlags::SUPPORTED;
        self.flags |= can;
        flags - can
    }

    /// Whether requests shall go through rings, and can.
    pub(crate) fn wants_rings(&self) -> bool {
        (self.flags & self.offered).contains(InitFlags::OVER_IO_URING)
    }
}

/// The state after an INIT request.
pub(crate) enum Negotiation {
    /// The kernel is newer by a major version: this answer tells it ours, and it asks again.
    Again(InitOut),
    /// The kernel is too old.
    TooOld {
        major: u32,
        minor: u32,
    },
    Agreed(KernelInfo),
}

/// Reads an INIT request.
pub(crate) fn read(mut body: Body<'_>) -> Result<Negotiation, Malformed> {
    let init: InitIn = body.take()?;
    if init.major > VERSION_MAJOR {
        let out = InitOut { major: VERSION_MAJOR, minor: VERSION_MINOR_MAX, ..InitOut::default() };
        return Ok(Negotiation::Again(out));
    }
    if init.major < VERSION_MAJOR || init.minor < VERSION_MINOR_MIN {
        return Ok(Negotiation::TooOld { major: init.major, minor: init.minor });
    }
    let mut flags = u64::from(init.flags);
    if InitFlags::from_bits_retain(flags).contains(InitFlags::INIT_EXT) {
        let extended: InitInExt = body.take()?;
        flags |= u64::from(extended.flags2) << 32;
    }
    Ok(Negotiation::Agreed(KernelInfo {
        major: init.major,
        minor: init.minor,
        flags: InitFlags::from_bits_retain(flags),
        max_readahead: init.max_readahead,
    }))
}

/// The configuration a file system starts from.
pub(crate) fn propose(kernel: &KernelInfo) -> Config {
    Config::new(kernel)
}

/// The answer to INIT for a wish.
pub(crate) fn answer(kernel: &KernelInfo, config: &Config, page_size: u32) -> InitOut {
    let always = InitFlags::INIT_EXT | InitFlags::MAX_PAGES | InitFlags::ABORT_ERROR;
    let flags = (config.flags | always) & kernel.flags & InitFlags::SUPPORTED;
    let most = if flags.contains(InitFlags::MAX_PAGES) { MAX_WRITE } else { MAX_WRITE_PLAIN };
    let max_write = config.max_write.clamp(page_size.min(most), most);
    let max_pages = u16::try_from(max_write.div_ceil(page_size.max(1))).unwrap_or(u16::MAX);
    let (low, high) = halves(flags.bits());
    InitOut {
        major: VERSION_MAJOR,
        minor: kernel.minor.min(VERSION_MINOR_MAX),
        max_readahead: config.max_readahead.min(kernel.max_readahead),
        flags: low,
        max_background: config.max_background.max(1),
        congestion_threshold: config.congestion_threshold.clamp(1, config.max_background.max(1)),
        max_write,
        time_gran: config.time_gran.clamp(1, 1_000_000_000),
        max_pages,
        map_alignment: 0,
        flags2: high,
        unused: [0; 7],
    }
}

/// The low and the high 32 bits.
#[allow(clippy::cast_possible_truncation)] // Cutting is the purpose.
fn halves(bits: u64) -> (u32, u32) {
    (bits as u32, (bits >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;
    use crate::request::Request;
    use crate::request::testing::encode;
    use zerocopy::IntoBytes;

    fn ask(major: u32, minor: u32, flags: u64) -> Negotiation {
        let (low, high) = halves(flags);
        let init = InitIn { major, minor, max_readahead: 131_072, flags: low };
        let extended = InitInExt { flags2: high, unused: [0; 11] };
        let bytes = encode(opcode::INIT, 1, 0, &[init.as_bytes(), extended.as_bytes()], &[]);
        read(Request::parse(&bytes).unwrap().body).unwrap()
    }

    #[test]
    fn versions() {
        assert!(matches!(ask(8, 0, 0), Negotiation::Again(out) if out.major == 7));
        assert!(matches!(ask(7, 30, 0), Negotiation::TooOld { major: 7, minor: 30 }));
        assert!(matches!(ask(6, 99, 0), Negotiation::TooOld { .. }));
        assert!(matches!(ask(7, 31, 0), Negotiation::Agreed(info) if info.flags.is_empty()));
        assert!(matches!(ask(7, 45, !0), Negotiation::Agreed(_)));
    }

    #[test]
    fn high_flags_count_only_with_the_extension() {
        let high = InitFlags::HAS_EXPIRE_ONLY.bits();
        let Negotiation::Agreed(info) = ask(7, 38, high) else { panic!() };
        assert!(info.flags.is_empty());
        let Negotiation::Agreed(info) = ask(7, 38, high | InitFlags::INIT_EXT.bits()) else { panic!() };
        assert!(info.flags.contains(InitFlags::HAS_EXPIRE_ONLY));
    }

    #[test]
    fn only_what_is_offered_and_implemented_is_agreed_on() {
        let Negotiation::Agreed(info) = ask(7, 45, !0) else { panic!() };
        let mut config = propose(&info);
        let refused = config.want(InitFlags::SETXATTR_EXT | InitFlags::WRITEBACK_CACHE);
        assert_eq!(refused, InitFlags::SETXATTR_EXT);
        config.flags = InitFlags::all();
        config.max_write = u32::MAX;
        let out = answer(&info, &config, 4096);
        let bits = u64::from(out.flags) | u64::from(out.flags2) << 32;
        assert_eq!(bits, InitFlags::SUPPORTED.bits());
        assert_eq!((out.max_write, out.max_pages, out.minor), (MAX_WRITE, 256, VERSION_MINOR_MAX));

        let old = KernelInfo { minor: 31, flags: InitFlags::ASYNC_READ, ..info };
        let mut config = propose(&old);
        assert_eq!(config.want(InitFlags::WRITEBACK_CACHE), InitFlags::WRITEBACK_CACHE);
        let out = answer(&old, &config, 4096);
        assert_eq!((u64::from(out.flags), out.flags2), (InitFlags::ASYNC_READ.bits(), 0));
        assert_eq!((out.max_write, out.minor), (MAX_WRITE_PLAIN, 31));
    }
}
