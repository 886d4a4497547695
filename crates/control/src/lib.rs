//! The requests one can make of a volume, mounted or not, and who may.
//!
//! Every verb is written once: a [`Request`] goes to a [`Control`], which is a [`LocalVolume`]
//! (opens the image or device itself) or a [`RemoteVolume`] (asks the daemon that holds it), and
//! [`Response`]s come back, long lists in batches. What runs a request is [`execute()`], over a
//! [`Host`]: the opened volume here, the daemon's volume there.
//!
//! ```text
//! verb -> Control::call(Request) -+-> LocalVolume  -> execute(Host)
//!                                 +-> RemoteVolume -> socket -> serve() -> execute(Host)
//! ```
//!
//! Nothing here touches a terminal, and of the environment only the time zone counts.

pub mod account;
mod brief;
pub mod cleaner;
mod connect;
mod error;
mod execute;
mod host;
pub mod left_over;
mod local;
pub mod lost;
pub mod moment;
pub mod mounts;
mod named;
mod open_with_room;
pub mod past;
mod paths;
mod remote;
mod request;
mod response;
pub mod retention;
mod running;
pub mod scrub;
mod serve;
pub mod size;
pub mod socket;
mod when;
#[cfg(not(feature = "test-support"))]
mod wire;
#[cfg(feature = "test-support")]
pub mod wire;

pub use account::{Account, Alone};
pub use brief::brief;
pub use connect::{
    Control, answers, connect, connect_within, holds_super_block, left_mounts_of, missing, mounted_volumes,
    of_mount, only_mount,
};
pub use error::{ControlError, Kind, Result};
pub use execute::execute;
pub use host::{Caller, Host, MountInfo, Wanted};
pub use local::LocalVolume;
pub use moment::Moment;
pub use open_with_room::open_with_room;
pub use remote::{PATIENCE, RemoteVolume};
pub use request::{
    CheckpointQuery, Clean, Least, MomentMount, Request, Retain, SegmentQuery, Tune, UnmountWhat,
};
pub use response::{
    Checkpoint, CleanProgress, CleanReport, Damage, Discarding, DumpItem, LatestLog, MapHead, MapSegment,
    MountPoint, Progress, Removed, Resized, Response, Segment, SegmentState, SetAside, Settings, Status,
    TrimReport,
};
pub use retention::{GivenUp, Retention, RetentionPreview};
pub use running::running;
pub use serve::serve;
