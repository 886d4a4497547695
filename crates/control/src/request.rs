//! What can be asked.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use silt_names::ByteName;

use crate::scrub::ScrubAction;
use crate::{Moment, paths};

/// Most numbers in one request that carries a list.
pub const MAX_LIST: usize = 4096;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Whether there is anybody. Answered without a look at the volume, to everybody; a daemon that does not know it says so,
    /// which is as good an answer.
    Ping,
    /// Whether it serves the mount with this number ([`crate::mounts::Mount::connection`]). Answered like [`Request::Ping`], with
    /// an error where it does not ([`crate::Kind::NotFound`]) or cannot tell.
    Serves(u64),
    /// What the volume is and how it is. Answer: [`crate::Status`].
    Status,
    /// Files found damaged since the volume was mounted. Answers: batches of [`crate::Damage`].
    ListDamage,
    /// Answers: batches of [`crate::Checkpoint`].
    ListCheckpoints(CheckpointQuery),
    /// Makes what waits a checkpoint, and it a snapshot if asked. Answer: its number.
    MakeCheckpoint {
        /// Keep it.
        snapshot: bool,
    },
    /// Turns checkpoints into snapshots or back. Those that cannot be are answered by
    /// [`crate::Response::Refused`] each; the others are done.
    ChangeMode {
        /// At most [`MAX_LIST`].
        checkpoints: Vec<u64>,
        /// To a snapshot, else to a plain checkpoint.
        snapshot: bool,
    },
    /// Removes the plain checkpoints from `start` to `end`, both inclusive. Answer:
    /// [`crate::Removed`], also before an error where some are gone. This and the two before answer with
    /// [`crate::response::Progress`] while they wait for the cleaner.
    RemoveCheckpoints {
        /// First number.
        start: u64,
        /// Last number; `u64::MAX`: all but the newest.
        end: u64,
    },
    /// Answers: batches of [`crate::Segment`].
    ListSegments(SegmentQuery),
    /// What lies in each segment, and who needs it. Answers: [`crate::MapHead`], then batches of [`crate::MapSegment`].
    Map,
    /// What the logs of segments hold. Answers: batches of [`crate::DumpItem`].
    DumpSegments {
        /// At most [`MAX_LIST`].
        segments: Vec<u64>,
    },
    /// Makes everything durable. Answer: the newest checkpoint's number.
    Sync,
    /// The newest log with a super root, which is written whole. Answer: [`crate::LatestLog`]. Of a mounted volume nothing it
    /// leads to is written over as long as the connection lasts; the daemon ends it where others wait for that space.
    LatestLog,
    /// The super block's settings. Answer: [`crate::Settings`].
    ShowSettings,
    /// Changes settings. Answer: [`crate::Settings`] as they are then.
    Tune(Tune),
    /// Makes the volume `size` bytes large, and the image it lies in; without a size it grows to the device's end.
    /// Answers: [`crate::response::Progress`] in segments while it becomes smaller, and at the end [`crate::Resized`].
    Resize {
        /// Bytes.
        size: Option<u64>,
    },
    /// Looks a moment up. Answer: the number of the checkpoint that shows it.
    FindMoment {
        /// Which.
        at: Moment,
        /// It must be a snapshot.
        snapshot_only: bool,
    },
    /// Mounts a past moment beside the live tree. Answer: where it is mounted.
    MountMoment(MomentMount),
    /// Unmounts. Answer: what was unmounted.
    Unmount(UnmountWhat),
    /// Empties segments until nothing is left that is worth it. Answers: [`crate::CleanProgress`] now and then, and at
    /// the end [`crate::CleanReport`].
    Clean(Clean),
    /// Discards the segments that may be written. Answers: [`crate::response::Progress`] in bytes, and at the end
    /// [`crate::TrimReport`].
    Trim {
        /// Bytes: shorter runs of such segments stay.
        minimum: u64,
    },
    /// What is kept of the past. Answer: [`crate::Retention`].
    ShowRetention,
    /// Sets what is kept. Answer: [`crate::Retention`].
    SetRetention(Retain),
    /// What keeping so much would bring; what is none is as it is. Answer: [`crate::RetentionPreview`].
    PreviewRetention(Retain),
    /// Where the space is, counted then and there. Answers: [`crate::Response::Counting`] now and then, and
    /// [`crate::Account`].
    Account,
    /// Which files hold how much of the past. Answers: [`crate::Response::Counting`] now and then, batches of
    /// [`crate::past::PastFile`], who holds most first, and [`crate::past::PastTotal`].
    ListPast(crate::past::PastQuery),
    /// Scrubbing of a mounted volume. Answer: [`crate::scrub::ScrubStatus`].
    Scrub(ScrubAction),
}

/// Which checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointQuery {
    /// Snapshots only.
    pub snapshots_only: bool,
    /// First number, in the order of the list; none: from its beginning.
    pub from: Option<u64>,
    /// At most so many.
    pub count: Option<u64>,
    /// Newest first.
    pub reverse: bool,
    /// Also plain checkpoints in which no file changed.
    pub minor: bool,
}

/// Which segments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentQuery {
    /// First number.
    pub from: u64,
    /// Look at so many.
    pub count: Option<u64>,
    /// Also clean ones.
    pub all: bool,
    /// Count the blocks still in use, with checkpoints younger than so many seconds protected.
    pub live: Option<u64>,
}

/// What to change in the super block; what is none stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tune {
    /// At most 80 bytes count.
    #[serde(flatten, with = "silt_names::label")]
    pub label: Option<ByteName>,
    /// As its text is written.
    pub uuid: Option<String>,
    /// Seconds between checkpoints of a busy volume; 0: the default of who mounts.
    pub interval: Option<u32>,
    /// Dirty blocks that start a checkpoint; 0: the default of who mounts.
    pub block_max: Option<u32>,
    /// The `block_count` feature.
    pub block_count: Option<bool>,
}

/// How to clean.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clean {
    /// Checkpoints younger than so many seconds are kept, besides snapshots and the volume's floor.
    pub protection: u64,
    /// In place of that: what is kept, in words; an empty text for what the volume wishes.
    #[serde(default)]
    pub retain: Option<String>,
    /// In which order, by name; none: the default.
    pub policy: Option<String>,
    /// What a segment must give to be taken; none: a twentieth of it.
    pub least: Option<Least>,
    /// End when users can have so many bytes.
    pub until: Option<u64>,
    /// Also take blocks whose log does not match its checksum, as they are.
    pub salvage: bool,
    /// Segments freed in one step, at most; none: as many as there is memory for.
    pub at_once: Option<u64>,
    /// Rest so many milliseconds after every step.
    pub rest: u64,
}

/// What is to be kept, in words; what is none stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retain {
    /// "default" takes the volume's own away.
    pub wish: Option<String>,
    /// What is kept even where it leaves no space.
    pub floor: Option<String>,
}

/// What emptying a segment must give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Least {
    /// Blocks.
    Blocks(u64),
    /// Of the segment's blocks.
    Percent(u64),
}

/// A moment to mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MomentMount {
    /// Which.
    pub at: Moment,
    /// It must be a snapshot (`cp=`).
    pub snapshot_only: bool,
    /// Where; an absolute path.
    #[serde(with = "paths")]
    pub dir: PathBuf,
    /// Let other users in; where nothing is said, as the live tree does.
    pub allow_other: Option<bool>,
    /// Allow programs to be run.
    pub exec: bool,
    /// Honour set-user-id bits; root only.
    pub suid: bool,
    /// Honour device nodes; root only.
    pub dev: bool,
}

/// What to unmount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnmountWhat {
    /// One mount point.
    Dir(#[serde(with = "paths")] PathBuf),
    /// All of the volume: moments, then the live tree.
    Everything,
}

impl Request {
    /// Whether it only looks, or asks for what anybody may have (a sync).
    pub fn only_looks(&self) -> bool {
        match self {
            Request::Ping
            | Request::Serves(_)
            | Request::Status
            | Request::ListDamage
            | Request::ListCheckpoints(_)
            | Request::ListSegments(_)
            | Request::Map
            | Request::DumpSegments { .. }
            | Request::Sync
            | Request::LatestLog
            | Request::FindMoment { .. }
            | Request::ShowSettings
            | Request::ShowRetention
            | Request::PreviewRetention(_)
            | Request::Account
            | Request::ListPast(_)
            | Request::Scrub(ScrubAction::Status) => true,
            Request::MakeCheckpoint { .. }
            | Request::ChangeMode { .. }
            | Request::RemoveCheckpoints { .. }
            | Request::Tune(_)
            | Request::Resize { .. }
            | Request::MountMoment(_)
            | Request::Unmount(_)
            | Request::Clean(_)
            | Request::Trim { .. }
            | Request::SetRetention(_)
            | Request::Scrub(_) => false,
        }
    }

    /// Whether an unmounted volume must be opened for writing.
    pub fn writes(&self) -> bool {
        matches!(
            self,
            Request::MakeCheckpoint { .. }
                | Request::ChangeMode { .. }
                | Request::RemoveCheckpoints { .. }
                | Request::Tune(_)
                | Request::Resize { .. }
                | Request::Clean(_)
                | Request::Trim { .. }
                | Request::SetRetention(_)
        )
    }
}
