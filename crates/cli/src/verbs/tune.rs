//! `silt tune`: shows and changes the settings in the super block.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::ArgAction;
use silt_control::{Control, ControlError, Kind, Request, Response, Settings, Tune, connect};

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::{number, target, times};

/// Show or change a volume's label, UUID, features and defaults
#[derive(clap::Args)]
pub struct Args {
    /// Show all settings
    #[arg(short, long)]
    list: bool,
    /// Set the label, of which 80 bytes count
    #[arg(short = 'L', long)]
    label: Option<OsString>,
    /// Set the UUID
    #[arg(short = 'U', long)]
    uuid: Option<String>,
    /// Set the seconds between checkpoints of a busy volume; 0 leaves it to who mounts
    #[arg(short, long, value_name = "SECONDS", value_parser = number::whole::<u32>)]
    interval: Option<u32>,
    /// Set the count of changed blocks that starts a checkpoint; 0 leaves it to who mounts
    #[arg(short = 'm', long, value_name = "BLOCKS", value_parser = number::whole::<u32>)]
    block_max: Option<u32>,
    /// Set a feature, or clear it with a ^ before the name: block_count
    #[arg(short = 'O', long, value_name = "FEATURE", value_delimiter = ',')]
    options: Vec<String>,
    /// Accepted as nilfs-tune has it; a volume in use is changed through who uses it, or not at all
    #[arg(short, action = ArgAction::SetTrue, hide = true)]
    force: bool,
    /// Show the settings as JSON (of a label that is no UTF-8 the bytes, too)
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory
    volume: PathBuf,
}

fn features(options: &[String]) -> Result<Option<bool>> {
    let mut wanted = None;
    for option in options {
        wanted = match option.as_str() {
            "block_count" => Some(true),
            "^block_count" => Some(false),
            other => return Err(Failure::usage(format!("there is no feature {other:?} (block_count is)"))),
        };
    }
    Ok(wanted)
}

pub fn run(args: &Args) -> Result<()> {
    let tune = Tune {
        label: args.label.as_ref().map(|label| label.as_bytes().into()),
        uuid: args.uuid.clone(),
        interval: args.interval,
        block_max: args.block_max,
        block_count: features(&args.options)?,
    };
    let changes = tune != Tune::default();
    if !changes && !args.list && !args.json {
        return Err(ControlError::new(Kind::Invalid, "nothing to do")
            .hint("-l shows the settings; -L, -U, -i, -m and -O change them")
            .into());
    }
    let mut control = connect(&args.volume)?;
    if changes {
        request(&mut *control, Request::Tune(tune))?;
    }
    if args.label.as_ref().is_some_and(|label| label.len() > 80) {
        target::eprintln_quiet("note: the label is cut off after 80 bytes");
    }
    if args.list || args.json {
        let settings = request(&mut *control, Request::ShowSettings)?;
        let mut out = Output::new();
        match settings {
            Some(s) if args.json => out.json(&s)?,
            Some(s) => {
                lines(&s).iter().try_for_each(|(name, value)| out.line(format!("{name:<26}{value}")))?
            }
            None => {}
        }
        return out.finish();
    }
    Ok(())
}

fn request(control: &mut dyn Control, request: Request) -> Result<Option<Settings>> {
    let mut settings = None;
    target::call(control, request, |part| {
        if let Response::Settings(s) = part {
            settings = Some(*s);
        }
        Ok(())
    })?;
    Ok(settings)
}

/// The listing of nilfs-tune.
fn lines(s: &Settings) -> Vec<(&'static str, String)> {
    let or_none = |text: String| if text.is_empty() { "(none)".to_owned() } else { text };
    let mut state = if s.valid { "valid" } else { "invalid or mounted" }.to_owned();
    if s.error {
        state.push_str(", error");
    }
    let user = |id: u16, name| format!("{id} ({name} {})", if id == 0 { "root" } else { "unknown" });
    vec![
        ("Filesystem volume name:", or_none(s.label.to_string())),
        ("Filesystem UUID:", s.uuid.clone()),
        ("Filesystem magic number:", format!("{:#x}", s.magic)),
        ("Filesystem revision #:", format!("{}.{}", s.revision, s.minor_revision)),
        ("Filesystem features:", or_none(s.features.join(" "))),
        ("Filesystem state:", state),
        (
            "Filesystem OS type:",
            if s.creator_os == 0 { "Linux".to_owned() } else { format!("unknown ({})", s.creator_os) },
        ),
        ("Block size:", s.block_size.to_string()),
        ("Filesystem created:", times::long(s.created)),
        ("Last mount time:", times::long(s.mounted)),
        ("Last write time:", times::long(s.written)),
        ("Mount count:", s.mount_count.to_string()),
        ("Maximum mount count:", s.max_mount_count.to_string()),
        ("Reserve blocks uid:", user(s.reserved_uid, "user")),
        ("Reserve blocks gid:", user(s.reserved_gid, "group")),
        ("First inode:", s.first_inode.to_string()),
        ("Inode size:", s.inode_size.to_string()),
        ("DAT entry size:", s.dat_entry_size.to_string()),
        ("Checkpoint size:", s.checkpoint_size.to_string()),
        ("Segment usage size:", s.segment_usage_size.to_string()),
        ("Number of segments:", s.segments.to_string()),
        ("Device size:", s.device_size.to_string()),
        ("First data block:", s.first_data_block.to_string()),
        ("# of blocks per segment:", s.blocks_per_segment.to_string()),
        ("Reserved segments %:", s.reserved_percent.to_string()),
        ("Last checkpoint #:", s.last_checkpoint.to_string()),
        ("Last block address:", s.last_block.to_string()),
        ("Last sequence #:", s.last_sequence.to_string()),
        ("Free blocks count:", s.free_blocks.to_string()),
        ("Commit interval:", s.interval.to_string()),
        ("# of blks to create seg:", s.block_max.to_string()),
        ("CRC seed:", format!("{:#010x}", s.crc_seed)),
        ("CRC check sum:", format!("{:#010x}", s.crc_sum)),
        ("CRC check data size:", format!("{:#010x}", s.crc_bytes)),
    ]
}
