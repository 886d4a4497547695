//! What is wrong with bytes: not ours (`Incompatible`) or damaged (`Corrupt`).

/// Result of parsing.
pub type Result<T> = std::result::Result<T, Error>;

/// An error found while parsing a structure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no NILFS2 volume here.
    #[error("no NILFS2 super block")]
    NotNilfs,
    /// A sound volume that this implementation must not touch.
    #[error(transparent)]
    Incompatible(#[from] Incompatible),
    /// A structure that cannot be right.
    #[error("{structure}: {what}")]
    Corrupt { structure: &'static str, what: String },
}

/// Why a sound volume is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// Revision below 2.
    #[error("revision {0} of the format is not supported (2 is)")]
    Revision(u32),
    /// Unknown incompatible feature bits.
    #[error("unknown incompatible features {0:#x}")]
    Features(u64),
    /// Block size exponent beyond the format's limit.
    #[error("block size 2^{0} is not supported (1024 to 65536 bytes are)")]
    BlockSize(u32),
}

impl Error {
    /// A `Corrupt` error.
    pub fn corrupt(structure: &'static str, what: impl Into<String>) -> Self {
        Error::Corrupt { structure, what: what.into() }
    }
}
