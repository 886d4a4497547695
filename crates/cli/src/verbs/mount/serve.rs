//! `silt serve`, hidden: the process that serves a mount.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use silt_control::{ControlError, Kind};
use silt_daemon::Config;

use super::options::Options;
use super::{Job, background, log};
use crate::failure::Result;
use crate::number;
use crate::verbs::rescue;

/// Serve a mount (started by silt mount)
#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value = "")]
    options: OsString,
    #[arg(long)]
    read_only: bool,
    #[arg(long, value_parser = number::whole::<u64>)]
    moment: Option<u64>,
    #[arg(long)]
    log: Option<PathBuf>,
    #[arg(long)]
    verbose: bool,
    volume: PathBuf,
    dir: PathBuf,
}

/// In the background: says on standard output how it went, and nothing after that.
pub fn run(args: Args) -> Result<()> {
    // Not to end with the terminal or the shell that started us. Where we lead a group already,
    // whoever started us has seen to it, and answers for it.
    let _ = rustix::process::setsid();
    let result = prepare(&args).and_then(|config| {
        serve(&config, || {
            let _ = writeln!(std::io::stdout(), "{}", background::READY);
            hush();
        })
    });
    if let Err(error) = &result {
        tracing::error!("{error}");
        // Before it was ready somebody listens; later the pipe is gone.
        let text = serde_json::to_string(error).unwrap_or_default();
        let _ = writeln!(std::io::stdout(), "{text}");
    }
    Ok(result?)
}

fn prepare(args: &Args) -> std::result::Result<Config, ControlError> {
    log::start(log::To::of(args.log.as_deref())?, args.verbose);
    let mut options =
        Options::parse(std::iter::once(args.options.as_os_str()), true).map_err(|f| match f {
            crate::failure::Failure::Error(e) => e,
            _ => ControlError::new(Kind::Invalid, "wrong options"),
        })?;
    options.read_only |= args.read_only;
    config(&args.volume, &args.dir, &options, args.moment)
}

fn config(
    volume: &Path,
    dir: &Path,
    options: &Options,
    moment: Option<u64>,
) -> std::result::Result<Config, ControlError> {
    let mut daemon = options.for_daemon(moment);
    if let Some(log) = options.rescue {
        daemon.super_block = Some(rescue::super_block(volume, log)?);
    }
    Ok(Config { volume: volume.to_owned(), dir: dir.to_owned(), options: daemon })
}

/// Turns standard output to nowhere: whoever started us waits for its end.
fn hush() {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    if let Ok(null) = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()) {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// In the foreground, with the log on standard error.
pub fn here(job: &Job, moment: Option<u64>) -> Result<()> {
    let to = match &job.log {
        Some(_) => log::To::of(job.log.as_deref())?,
        None => log::To::Stderr,
    };
    log::start(to, job.verbose);
    let config = config(&job.volume, &job.dir, &job.options, moment)?;
    Ok(serve(&config, || {
        // The log has said what was found.
        super::tell(job, job.log.is_some());
        notify_manager();
    })?)
}

fn serve(config: &Config, ready: impl FnOnce()) -> std::result::Result<(), ControlError> {
    silt_daemon::run(config, ready).map_err(into_control)
}

fn into_control(e: silt_daemon::Error) -> ControlError {
    use silt_daemon::Error as E;
    let text = e.to_string();
    match e {
        E::Device(e) => e.into(),
        E::Volume { volume, source } => ControlError::from(source).about(volume.display()),
        E::Control(e) => e,
        E::Fuse(e) => of_fuse(e),
        E::System(e) => ControlError::io("the system refused", &e),
        E::Invalid(_) => ControlError::new(Kind::Invalid, text),
        E::Unclean { .. } => ControlError::new(Kind::Io, text),
    }
}

fn of_fuse(e: silt_fuse::Error) -> ControlError {
    use silt_fuse::Error as E;
    let text = e.to_string();
    let io = |source: &std::io::Error| ControlError { message: text.clone(), ..ControlError::io("", source) };
    match &e {
        E::Device(source) if source.kind() == std::io::ErrorKind::PermissionDenied => no_device(io(source)),
        E::Device(source) | E::MountPoint { source, .. } | E::Mount { source, .. } => io(source),
        E::HelperMissing(_) => {
            ControlError::new(Kind::Unavailable, text).hint("install it: apt install fuse3, or become root")
        }
        // The helper opens it as the user.
        E::Helper(said) if said.contains("/dev/fuse") => {
            no_device(ControlError::new(Kind::NotPermitted, text))
        }
        E::Helper(_) => ControlError::new(Kind::NotPermitted, text),
        E::BadOption { .. } => ControlError::new(Kind::Invalid, text),
        E::Busy(_) => ControlError::new(Kind::Busy, text),
        E::StaleMount(path) => ControlError::new(Kind::Busy, text.clone())
            .hint(format!("silt umount {}", silt_names::quoted(path))),
        E::NotMounted(_) => ControlError::new(Kind::NotFound, text),
        _ => ControlError::new(Kind::Io, text),
    }
}

/// Says what lets a user in who may not open the device.
fn no_device(e: ControlError) -> ControlError {
    e.hint("ls -l /dev/fuse says who may; root lets everybody in with chmod 666 /dev/fuse, and for good with a rule of udev")
}

/// Tells systemd that a service is ready, where it asked to be told.
fn notify_manager() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::SocketAddr;
    let bytes = path.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent =
        address.and_then(|a| UnixDatagram::unbound().and_then(|socket| socket.send_to_addr(b"READY=1", &a)));
    if let Err(e) = sent {
        tracing::warn!("the service manager could not be told that the volume is mounted: {e}");
    }
}
