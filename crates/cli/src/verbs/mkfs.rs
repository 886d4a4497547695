//! `silt mkfs`: makes a volume.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use silt_control::{ControlError, Kind, LocalVolume, Request, Retain};
use silt_device::{Access, Device, FileDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_names::quoted;
use silt_retention::Wish;
use uuid::Uuid;

use crate::failure::{Failure, Result, by_own_name};
use crate::output::{Output, count};
use crate::{content, number, overwrite, progress, signatures, size, target};

/// Make a volume on a block device or in an image file
///
/// Refuses a device that is in use, and unless -f is given a device or file that holds a known file system or any other
/// data: a sample of it has to be all zeros or holes.
/// The root directory belongs to root, or where an ordinary user makes an image, to that user.
#[derive(clap::Args)]
pub struct Args {
    /// Block size in bytes: a power of two from 1024 to 65536. The Linux kernel mounts volumes of
    /// up to 4096
    #[arg(short, long, value_name = "BYTES", default_value_t = 4096, value_parser = number::whole::<u32>)]
    block_size: u32,
    /// Blocks a segment: a power of two of at least 16 [default: 2048, or what a small volume has room for]
    #[arg(short = 'B', long, value_name = "COUNT", value_parser = number::whole::<u32>)]
    blocks_per_segment: Option<u32>,
    /// Read the whole device first, and refuse one with unreadable blocks
    #[arg(short, long)]
    check: bool,
    /// Overwrite what is there: a known file system, or other data
    #[arg(short, long)]
    force: bool,
    /// Do not discard what is on the device
    #[arg(short = 'K', long)]
    keep: bool,
    /// Label, of which 80 bytes count
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    label: OsString,
    /// Segments kept back for cleaning, 1 to 99 percent
    #[arg(short, long = "reserved", value_name = "PERCENT", default_value_t = 5, value_parser = number::whole::<u32>)]
    m: u32,
    /// Say what would be made, and make nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Features to switch on, or off with a ^ before the name: block_count, none
    #[arg(short = 'O', long, value_name = "FEATURE", value_delimiter = ',', default_value = "block_count")]
    options: Vec<String>,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
    /// Say more
    #[arg(short, long)]
    verbose: bool,
    /// Make a sparse image file of this size, as 512M or 16G
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Owner of the root directory, as UID:GID
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    owner: Option<(u32, u32)>,
    /// What is to be kept of the past, in words: silt retain --help
    #[arg(long, value_name = "WORDS", value_parser = words)]
    retain: Option<Wish>,
    /// Block device or image file
    volume: PathBuf,
}

fn words(text: &str) -> std::result::Result<Wish, String> {
    text.parse().map_err(|e: silt_retention::WordsError| e.to_string())
}

fn owner(text: &str) -> std::result::Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?)));
    ids.ok_or_else(|| format!("{text:?} is not two numbers with a colon between them"))
}

/// Whether `block_count` is to be set.
fn block_count(options: &[String]) -> Result<bool> {
    let mut on = false;
    for option in options {
        match option.as_str() {
            "block_count" => on = true,
            "^block_count" | "none" => on = false,
            other => {
                return Err(Failure::usage(format!(
                    "there is no feature {other:?} (block_count and none are)"
                )));
            }
        }
    }
    Ok(on)
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| ControlError::new(Kind::Io, format!("no random numbers: {e}")))?;
    Ok(bytes)
}

/// Who owns the root directory of a volume that this process makes.
fn default_owner() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// What a volume without further wishes is made with.
pub fn parameters() -> Result<Parameters> {
    Ok(Parameters {
        block_size: 4096,
        blocks_per_segment: 2048,
        reserved_percent: 5,
        label: Vec::new(),
        uuid: uuid::Builder::from_random_bytes(random()?).into_uuid().into_bytes(),
        crc_seed: u32::from_ne_bytes(random()?),
        now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        block_count: true,
        owner: default_owner(),
    })
}

pub fn run(args: Args) -> Result<()> {
    let parameters = Parameters {
        block_size: args.block_size,
        blocks_per_segment: args.blocks_per_segment.unwrap_or(USUAL),
        reserved_percent: args.m,
        label: args.label.as_bytes().to_vec(),
        block_count: block_count(&args.options)?,
        owner: args.owner.unwrap_or_else(default_owner),
        ..parameters()?
    };
    let mut notes = Notes::new();
    if parameters.block_size > 4096 {
        notes.push(
            "the Linux kernel's driver cannot mount a volume with blocks of more than 4096 bytes".to_owned(),
        );
    }
    if parameters.label.len() > 80 {
        notes.push("the label is cut off after 80 bytes".to_owned());
    }
    let exists = args.volume.exists();
    if args.size.is_none() && !exists {
        let volume = quoted(&args.volume);
        return Err(ControlError::new(
            Kind::NotFound,
            format!("there is no device or file {}", args.volume.display()),
        )
        .hint(match missing_dir(&args.volume) {
            None => format!("--size makes an image file: silt mkfs --size 1G {volume}"),
            Some(dir) => format!(
                "--size makes an image file, in a directory that is there: mkdir -p {}; silt mkfs --size 1G {volume}",
                quoted(dir)
            ),
        })
        .into());
    }
    if args.dry_run {
        let bytes = match (args.size, exists) {
            (Some(size), false) => size,
            (size, _) => {
                let device = silt_device::open(&args.volume, Access::ReadOnly, &Default::default())?;
                refuse_content(&device, &args)?;
                size.unwrap_or_else(|| device.len())
            }
        };
        let plan = planned(&args, parameters, bytes, &mut notes)?;
        return say(&args, &plan, "would be", &notes);
    }
    // Nothing is made, and nothing lost, for a plan that does not hold.
    let plan = args.size.map(|size| planned(&args, parameters.clone(), size, &mut notes)).transpose()?;
    let (device, made) = open(&args, exists)?;
    let result = make(&args, &device, plan, parameters, &mut notes);
    drop(device);
    let result = result.and_then(|plan| retain(&args).map(|()| plan));
    if result.is_err() && made {
        let _ = std::fs::remove_file(&args.volume);
    }
    // A volume that was made stays, whether that can be said or not.
    say(&args, &result?, "is", &notes)
}

/// What is to be said of a volume beside that it is made: nothing of it where it is refused.
type Notes = Vec<String>;

/// The directory that a new file needs and that is not there.
fn missing_dir(file: &Path) -> Option<&Path> {
    file.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists())
}

/// Blocks of a segment where nothing else is asked for, and those that a small volume may get in place of them.
const USUAL: u32 = 2048;
const SMALLEST: u32 = 64;
/// The fewest that can be asked for.
const FEWEST: u32 = 16;
/// A size that has room for segments of any length.
const LARGE: u64 = 1 << 50;

/// The plan. Where nobody asked for a size of segments, and few of the usual fit, they are smaller, and that is said; mkfs of
/// nilfs-utils refuses there.
fn planned(args: &Args, parameters: Parameters, bytes: u64, notes: &mut Notes) -> Result<Plan> {
    let usual = Plan::new(parameters.clone(), bytes);
    if usual.is_ok() || !by_own_name() {
        return Ok(usual?);
    }
    let mut blocks = USUAL / 2;
    while args.blocks_per_segment.is_none() && blocks >= SMALLEST {
        let smaller = Parameters { blocks_per_segment: blocks, ..parameters.clone() };
        if let Ok(plan) = Plan::new(smaller, bytes) {
            notes.push(format!(
                "segments of {blocks} blocks, since too few of the usual {USUAL} fit into {}",
                size::show(bytes)
            ));
            return Ok(plan);
        }
        blocks /= 2;
    }
    let least = Parameters { blocks_per_segment: args.blocks_per_segment.unwrap_or(SMALLEST), ..parameters };
    too_small(&least, bytes).map_or_else(|| usual.map_err(Failure::from), Err)
}

/// Refuses a size that is below the least that will do; none where it is not the size that is wrong.
fn too_small(parameters: &Parameters, bytes: u64) -> Option<Failure> {
    let will_do = |bytes: u64| Plan::new(parameters.clone(), bytes).is_ok();
    let (mut low, mut high) = (bytes, LARGE);
    if will_do(low) || !will_do(high) {
        return None;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if will_do(middle) { high = middle } else { low = middle }
    }
    let mut hint = format!("{} or more will do", size::typed(high));
    if parameters.blocks_per_segment > FEWEST {
        hint += ", or smaller segments with -B";
    }
    let message =
        format!("{} {} too small for a volume", size::exact(bytes), if bytes == 1 { "is" } else { "are" });
    Some(ControlError::new(Kind::Invalid, message).hint(hint).into())
}

fn make(
    args: &Args,
    device: &FileDevice,
    plan: Option<Plan>,
    parameters: Parameters,
    notes: &mut Notes,
) -> Result<Plan> {
    if args.check {
        check(device, args)?;
    }
    let plan = match plan {
        Some(plan) => plan,
        None => planned(args, parameters, device.len(), notes)?,
    };
    plan.write(device, !args.keep)?;
    Ok(plan)
}

/// Leaves the wish on the new volume.
fn retain(args: &Args) -> Result<()> {
    let Some(wish) = &args.retain else { return Ok(()) };
    let retain = Retain { wish: Some(wish.to_string()), floor: None };
    target::call(&mut LocalVolume::new(&args.volume)?, Request::SetRetention(retain), |_| Ok(()))
}

/// The device for writing, and whether a file was made for it.
fn open(args: &Args, exists: bool) -> Result<(FileDevice, bool)> {
    if let (Some(size), false) = (args.size, exists) {
        let made = silt_device::create_image(&args.volume, size, false).map_err(|e| match &e {
            silt_device::Error::Open { source, .. }
                if missing_dir(&args.volume).is_some()
                    || source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                overwrite::not_made(&args.volume, source)
            }
            _ => e.into(),
        });
        return Ok((made?, true));
    }
    let device = silt_device::open(&args.volume, Access::ReadWrite, &Default::default())?;
    refuse_content(&device, args)?;
    let Some(size) = args.size else { return Ok((device, false)) };
    if device.is_block_device() {
        return Err(Failure::usage("--size makes image files; a block device has the size it has"));
    }
    if !device.is_empty() && !args.force {
        return Err(ControlError::new(Kind::Other, format!("{} exists", args.volume.display()))
            .hint("-f makes a new image in its place, leaving out --size uses it as it is")
            .into());
    }
    drop(device);
    Ok((silt_device::create_image(&args.volume, size, true)?, false))
}

fn refuse_content(device: &FileDevice, args: &Args) -> Result<()> {
    if args.force {
        return Ok(());
    }
    let what = match signatures::find(device)? {
        None if content::is_any(device)? => Some("data that is not known to be of any file system"),
        known => known,
    };
    match what {
        None => Ok(()),
        Some(what) => Err(ControlError::new(Kind::Other, format!("{} holds {what}", args.volume.display()))
            .hint("-f overwrites it; what it holds is lost then")
            .into()),
    }
}

/// Reads all of the device.
fn check(device: &dyn Device, args: &Args) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let bar = progress::bytes(device.len(), "reading", args.quiet);
    let mut at = 0;
    while at < device.len() {
        let n = usize::try_from(device.len() - at).unwrap_or(usize::MAX).min(buffer.len());
        device.read_at(at, &mut buffer[..n]).map_err(|e| {
            bar.abandon();
            ControlError::new(Kind::Io, format!("{} has bad blocks: {e}", args.volume.display()))
                .hint("do not use this device")
        })?;
        at += n as u64;
        bar.set_position(at);
    }
    bar.finish_and_clear();
    Ok(())
}

fn say(args: &Args, plan: &Plan, is: &str, notes: &Notes) -> Result<()> {
    if !args.quiet {
        notes.iter().for_each(|note| target::eprintln_quiet(&format!("note: {note}")));
    }
    if args.quiet && !args.dry_run {
        return Ok(());
    }
    let mut out = Output::new();
    let g = &plan.geometry;
    let segment = u64::from(g.blocks_per_segment) * u64::from(g.block_size);
    out.line(format!(
        "{} {is} a NILFS2 volume of {}: {} of {}, blocks of {} bytes",
        args.volume.display(),
        size::show(plan.device_size),
        count(g.nsegments, "segment"),
        size::show(segment),
        g.block_size
    ))?;
    if args.verbose || args.dry_run {
        let sb = &plan.super_block;
        out.line(format!("  UUID               {}", Uuid::from_bytes(sb.uuid)))?;
        out.line(format!("  label              {}", String::from_utf8_lossy(sb.label())))?;
        out.line(format!("  device size        {} bytes", plan.device_size))?;
        out.line(format!("  blocks a segment   {}", g.blocks_per_segment))?;
        out.line(format!(
            "  reserved           {} segments ({} %)",
            g.reserved_segments(),
            g.reserved_percent
        ))?;
        out.line(format!("  first data block   {}", g.first_data_block))?;
    }
    out.finish()
}

/// Makes a volume in a new image with the usual parameters; the file is removed again if that fails.
pub fn default_image(path: &Path, bytes: u64) -> Result<()> {
    let plan = Plan::new(parameters()?, bytes)?;
    let device = silt_device::create_image(path, bytes, false)?;
    let written = plan.write(&device, false);
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    Ok(written?)
}
