//! What is answered. These types are also what `--json` prints, so their names are an interface.
//! What is called by bytes is told as [`silt_names`] says.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use silt_names::ByteName;

use crate::scrub::ScrubStatus;
use crate::{ControlError, Kind, Retention, RetentionPreview, paths};

/// One part of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// To [`crate::Request::Status`].
    Status(Box<Status>),
    /// A batch, in the order asked for.
    Checkpoints(Vec<Checkpoint>),
    /// The number of the newest checkpoint (Sync, MakeCheckpoint).
    Checkpoint(u64),
    /// To [`crate::Request::LatestLog`].
    LatestLog(LatestLog),
    /// One item of a list could not be done; the others go on.
    Refused {
        /// A checkpoint's or segment's number.
        number: u64,
        /// Why.
        error: ControlError,
    },
    /// To [`crate::Request::RemoveCheckpoints`].
    Removed(Removed),
    /// A batch, ascending.
    Segments(Vec<Segment>),
    /// To [`crate::Request::Map`], first.
    Map(MapHead),
    /// A batch, ascending.
    MapSegments(Vec<MapSegment>),
    /// A batch of a dump.
    Dump(Vec<DumpItem>),
    /// To ShowSettings and Tune.
    Settings(Box<Settings>),
    /// To [`crate::Request::Resize`].
    Resized(Resized),
    /// Where something was mounted.
    Mounted(#[serde(with = "paths")] PathBuf),
    /// What was unmounted.
    Unmounted(#[serde(with = "paths")] PathBuf),
    /// How far [`crate::Request::Clean`] is.
    CleanProgress(CleanProgress),
    /// To [`crate::Request::Clean`].
    Cleaned(Box<CleanReport>),
    /// How far a request is that says so.
    Progress(Progress),
    /// To [`crate::Request::Trim`].
    Trimmed(TrimReport),
    /// To [`crate::Request::ShowRetention`] and SetRetention.
    Retention(Box<Retention>),
    /// To [`crate::Request::PreviewRetention`].
    RetentionPreview(Box<RetentionPreview>),
    /// How far a count is.
    Counting { done: u64, total: u64 },
    /// To [`crate::Request::Account`].
    Account(Box<crate::Account>),
    /// A batch, who holds most first.
    Past(Vec<crate::past::PastFile>),
    /// To [`crate::Request::ListPast`], at its end.
    PastTotal(Box<crate::past::PastTotal>),
    /// To [`crate::Request::Scrub`].
    Scrub(Box<ScrubStatus>),
    /// A batch, the first met first.
    Damage(Vec<Damage>),
    /// A sentence worth telling beside the answer.
    Notice(String),
}

/// The newest log with a super root: what a mount would find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatestLog {
    /// Its first block.
    pub block: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// The checkpoint it made.
    pub checkpoint: u64,
}

impl From<silt_engine::LastLog> for LatestLog {
    fn from(last: silt_engine::LastLog) -> Self {
        LatestLog { block: last.pseg, sequence: last.seq, checkpoint: last.cno }
    }
}

/// A checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub number: u64,
    /// Seconds since 1970.
    pub created: u64,
    pub snapshot: bool,
    /// No file changed in it.
    pub minor: bool,
    /// Blocks its logs wrote.
    pub blocks_written: u64,
    /// Blocks in use by its tree.
    pub blocks: u64,
    pub inodes: u64,
}

impl From<silt_engine::CheckpointInfo> for Checkpoint {
    fn from(c: silt_engine::CheckpointInfo) -> Self {
        Checkpoint {
            number: c.cno,
            created: c.created,
            snapshot: c.snapshot,
            minor: c.minor,
            blocks_written: c.blocks_written,
            blocks: c.blocks,
            inodes: c.inodes,
        }
    }
}

/// What a removal did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Checkpoints removed.
    pub removed: u64,
    /// Snapshots in the range, which stay; at most [`crate::request::MAX_LIST`] are named.
    pub snapshots: Vec<u64>,
    /// All of them.
    pub snapshots_total: u64,
    /// Checkpoints that stay because they are mounted.
    pub busy: Vec<u64>,
}

impl Removed {
    /// There was nothing to remove.
    pub fn is_nothing(&self) -> bool {
        self.removed == 0 && self.snapshots_total == 0 && self.busy.is_empty()
    }
}

/// A segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub number: u64,
    /// Seconds since 1970; 0 if nothing was written to it.
    pub modified: u64,
    /// Held by the log writer.
    pub active: bool,
    pub dirty: bool,
    pub error: bool,
    /// Blocks written.
    pub blocks: u32,
    /// Blocks still in use, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_blocks: Option<u64>,
    /// How full they leave it in percent, as lssu reckons it, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_percent: Option<u64>,
    /// Not to be reclaimed now, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<bool>,
}

/// What a map is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapHead {
    pub segments: u64,
    pub block_size: u32,
    pub blocks_per_segment: u32,
    /// Seconds since 1970.
    pub now: u64,
    /// Blocks of the DAT that cannot be read: what they tell of is not counted.
    pub uncounted: u64,
}

/// What a segment is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SegmentState {
    /// Nothing that anybody needs is in it.
    #[default]
    Free,
    /// Logs lie in it.
    Used,
    /// The log is being written there, or will be next.
    Current,
    /// Marked bad.
    Bad,
}

/// What lies in a segment, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapSegment {
    pub number: u64,
    pub state: SegmentState,
    /// When it was written last, in seconds since 1970; 0 if it is free.
    pub modified: u64,
    /// Needed by the files as they are, the tables of the volume included.
    pub live: u32,
    /// Needed by nothing but snapshots and moments that are mounted.
    pub snapshots: u32,
    /// Needed by nothing but plain checkpoints that are kept.
    pub past: u32,
    /// Written, and needed by nobody.
    pub dead: u32,
}

/// One line of a dump of segments; lines of what is inside follow that of the whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DumpItem {
    /// A segment begins. The numbers are of its first log, none where there is none.
    Segment { number: u64, sequence: Option<u64>, next: Option<u64> },
    /// A log begins.
    Log { block: u64, blocks: u32, created: u64, files: u32 },
    /// A file's record begins.
    File { inode: u64, checkpoint: u64, blocks: u32, data_blocks: u32 },
    /// A block of the file.
    Block {
        /// Virtual number; none for blocks of the DAT.
        #[serde(skip_serializing_if = "Option::is_none")]
        virtual_block: Option<u64>,
        /// Offset in the file in blocks; for a node of the DAT its first key; none for other nodes.
        #[serde(skip_serializing_if = "Option::is_none")]
        offset: Option<u64>,
        /// Level of a node of the DAT.
        #[serde(skip_serializing_if = "Option::is_none")]
        level: Option<u8>,
        /// Where it lies.
        block: u64,
    },
}

/// A place where a volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPoint {
    #[serde(flatten, with = "silt_names::dir")]
    pub dir: PathBuf,
    /// The checkpoint it shows; none: the live tree.
    pub checkpoint: Option<u64>,
    pub read_only: bool,
    /// It was taken out of sight (`silt umount -l`), and goes on as long as somebody uses it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unseen: bool,
    /// Another mount lies over it on the same directory, and is what is seen there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub covered: bool,
}

impl MountPoint {
    /// For errors: what is to be done needs its end, for which those are waited for that use it still. `daemon`: its process.
    pub fn lingers(&self, daemon: Option<u32>) -> ControlError {
        let message = format!("what was unmounted from {} is in use still", self.dir.display());
        let kill = daemon.map_or_else(String::new, |pid| {
            format!(
                "; kill {pid} writes what waits and closes it all the same, and they see errors from then on"
            )
        });
        ControlError::new(Kind::Busy, message)
            .hint(format!("it ends with the last program that has a file or directory of it open{kill}"))
    }
}

/// What a volume is and how it is. Sizes in bytes, times in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The image file or block device.
    #[serde(flatten, with = "silt_names::volume")]
    pub volume: PathBuf,
    #[serde(flatten, with = "silt_names::label")]
    pub label: ByteName,
    pub uuid: String,
    pub block_size: u32,
    pub segment_size: u64,
    pub segments: u64,
    pub free_segments: u64,
    /// Segments of which users get nothing, however few are clean: the account's reserve.
    pub reserved_segments: u64,
    pub current_segment: u64,
    /// The volume.
    pub size: u64,
    /// What can still be written before space must be reclaimed.
    pub free: u64,
    /// What users get of it: less by the reserve, and no more than the host can give to an image.
    pub available: u64,
    /// The files of the live tree as of the newest checkpoint.
    pub live: u64,
    /// Taken by neither: past moments, what can be reclaimed, and what the log holds.
    pub past: u64,
    /// Free space of the file system that holds the image.
    pub host_free: Option<u64>,
    pub checkpoints: u64,
    pub snapshots: u64,
    pub newest_checkpoint: u64,
    pub newest_checkpoint_time: u64,
    /// Inodes in use.
    pub files: u64,
    /// Written by programs, not yet in a log.
    pub dirty: u64,
    pub dirty_files: u64,
    /// Clean at the last unmount (where it is not mounted).
    pub clean: bool,
    /// An error was met by somebody who used the volume.
    pub error_flag: bool,
    /// Why nothing is written any more.
    pub failure: Option<String>,
    /// Nothing can be written.
    pub read_only: bool,
    /// Where it is mounted, the live tree first.
    pub mounts: Vec<MountPoint>,
    /// When it was mounted.
    pub mounted_since: Option<u64>,
    /// Who mounted it.
    pub mounted_by: Option<u32>,
    /// As /proc/mounts shows it.
    pub mount_type: Option<String>,
    /// Whether sync(2) reaches the daemon; none: not mounted, or not known yet.
    pub sync_arrives: Option<bool>,
    /// The daemon.
    pub pid: Option<u32>,
    /// Files that were found damaged since it was mounted ([`crate::Request::ListDamage`]).
    #[serde(default)]
    pub damaged: u64,
    /// Damaged logs of which no file is known, in the same list.
    #[serde(default)]
    pub damaged_logs: u64,
    /// Segments that cannot be emptied, because what is in them cannot be trusted ([`crate::Request::Clean`]).
    #[serde(default)]
    pub set_aside: Vec<u64>,
    /// What was synced and is lost to every mount, as it was found when the volume was opened: sentences.
    #[serde(default)]
    pub lost: Vec<String>,
    /// Where the space is, as counted last.
    #[serde(default)]
    pub account: crate::account::Kept,
    /// What becomes of the bytes of clean segments.
    #[serde(default)]
    pub discard: Discarding,
    /// What cleans a mounted volume; none: it is not mounted for writing.
    #[serde(default)]
    pub cleaner: Option<crate::cleaner::Cleaner>,
    /// Sentences worth telling.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A file in which damage was met while the volume was mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// From the root of the volume; none where it is not known.
    #[serde(flatten, with = "silt_names::path")]
    pub path: Option<ByteName>,
    pub inode: u64,
    /// Of the past moment it was met in; none: the live tree.
    pub checkpoint: Option<u64>,
    /// First byte of the file that was asked for in vain, where bytes were.
    pub start: Option<u64>,
    /// Behind the last one.
    pub end: Option<u64>,
    /// What is wrong where, as it was met first.
    pub what: String,
    /// When that was, in seconds since 1970.
    pub first: u64,
    /// How often it was met.
    pub times: u64,
    /// First block of the log that is damaged, where only that is known.
    pub block: Option<u64>,
}

/// The super block, as far as people change it or ask for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    #[serde(flatten, with = "silt_names::label")]
    pub label: ByteName,
    pub uuid: String,
    pub magic: u16,
    pub revision: u32,
    pub minor_revision: u16,
    /// Names of features, unknown ones as bits.
    pub features: Vec<String>,
    /// Bits of features that allow reading only.
    pub read_only_features: u64,
    /// Cleanly unmounted.
    pub valid: bool,
    pub error: bool,
    pub creator_os: u32,
    pub block_size: u64,
    pub created: u64,
    pub mounted: u64,
    pub written: u64,
    pub mount_count: u16,
    pub max_mount_count: u16,
    pub reserved_uid: u16,
    pub reserved_gid: u16,
    pub first_inode: u32,
    pub inode_size: u16,
    pub dat_entry_size: u16,
    pub checkpoint_size: u16,
    pub segment_usage_size: u16,
    pub segments: u64,
    pub device_size: u64,
    pub first_data_block: u64,
    pub blocks_per_segment: u32,
    pub reserved_percent: u32,
    pub last_checkpoint: u64,
    pub last_block: u64,
    pub last_sequence: u64,
    pub free_blocks: u64,
    /// Seconds; 0: the default of who mounts.
    pub interval: u32,
    /// Blocks; 0: the default of who mounts.
    pub block_max: u32,
    pub crc_seed: u32,
    pub crc_sum: u32,
    pub crc_bytes: u16,
}

/// How far a cleaning is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanProgress {
    /// Segments looked at in this pass, and all that may be emptied.
    pub done: u64,
    pub total: u64,
    /// Segments that were freed so far.
    pub freed: u64,
}

/// What a cleaning did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanReport {
    /// Segments that are clean now and were not.
    pub freed: u64,
    /// Blocks that were copied.
    pub moved: u64,
    /// Checkpoints that went with what they alone held.
    pub checkpoints: u64,
    /// Segments that can be written now, those that are kept back among them.
    pub clean_segments: u64,
    /// Bytes that users can have of them, as df has it.
    #[serde(default)]
    pub available: u64,
    /// Bytes of a segment.
    pub segment_size: u64,
    /// Segments that stay as they are although something of them is needed no more; at most
    /// [`crate::request::MAX_LIST`] are named.
    pub set_aside: Vec<SetAside>,
    /// Logs that do not match their checksums, of which blocks were taken as they are.
    pub unverified: Vec<SetAside>,
    /// It ended for want of clean segments to copy to.
    pub out_of_room: bool,
}

/// A segment that cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    pub segment: u64,
    /// First block of the log at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<u64>,
    pub why: String,
}

/// How far something is; what is counted, the request says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
}

/// What a trim did, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrimReport {
    /// Clean segments that the device was told of.
    pub discarded: u64,
    /// Clean segments in runs shorter than asked for.
    pub too_small: u64,
    /// Clean segments that may not be written yet, because somebody reads there or that they are clean is not durable.
    pub held: u64,
    /// Of a segment.
    pub segment_size: u64,
}

/// What becomes of the bytes of clean segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discarding {
    /// What holds the volume can discard, as far as is known.
    pub possible: bool,
    /// Segments are discarded by themselves; none: the volume is not mounted.
    pub on: Option<bool>,
    /// Bytes discarded since it was mounted.
    pub discarded: u64,
    /// Bytes that wait to be discarded.
    pub waiting: u64,
}

/// What a resize did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    pub segments_before: u64,
    pub segments: u64,
    /// Bytes of the volume, before and now.
    #[serde(default)]
    pub size_before: u64,
    pub size: u64,
    /// Moments that had no room any more.
    #[serde(default)]
    pub moments_gone: u64,
}
