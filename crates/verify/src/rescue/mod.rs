//! The reading half of rescue: finds what survives on a volume however it is damaged, and reads it.
//!
//! ```text
//! geometry   the volume's numbers, from super blocks or from the logs alone
//! survey     every log, what of it verifies, and what cannot be read
//! records    what summaries say of blocks; read only where tables are damaged
//! misplaced  whether segments lie where others should
//! volume     super roots and the moments that can be read
//! state      one super root: its DAT, and maps through it, lost parts found by records
//! behind     synced data behind the newest checkpoint
//! tree       inodes, directories and content at one moment
//! walk       every file of a tree by its names
//! judge      what of a moment can be read and verifies
//! rate       all moments, and which is the newest that is whole
//! present    a super block for what was found, to mount it
//! copy       a tree copied out, with what could not be read
//! ```
//!
//! Nothing is written to the volume. A block is *sound* where the checksum of its log matches; all else is taken with
//! care and reported.

mod behind;
mod copy;
mod extents;
pub mod geometry;
mod here;
mod judge;
mod misplaced;
mod present;
mod rate;
mod records;
mod state;
mod survey;
mod tree;
mod volume;
mod walk;

pub use copy::CopyError;
pub use extents::{Extent, Mapped};
pub use judge::{Grade, Note, PROBLEMS_KEPT, Problem, Tally};
pub use rate::{Answer, Rated};
pub use records::{Candidate, Records, Role};
pub use state::State;
pub use survey::{LogRecord, Survey};
pub use tree::{Content, Directory, Entry, Inode, Origin, Tree};
pub use volume::{Moment, Rescue, Root};
pub use walk::{LOST_AND_FOUND, PATH_LIMIT, Sink};
