//! The verbs, a file each.

pub mod chcp;
pub mod check;
pub mod clean;
pub mod du;
pub mod dumpseg;
pub mod fsck;
pub mod install;
pub mod lab;
pub mod lscp;
pub mod lssu;
pub mod map;
pub mod mkcp;
pub mod mkfs;
pub mod mount;
pub mod repair;
pub mod rescue;
pub mod resize;
pub mod retain;
pub mod rmcp;
pub mod scrub;
pub mod status;
pub mod sync;
pub mod trim;
pub mod tune;
pub mod umount;

use crate::args::Verb;
use crate::failure::Result;

/// Runs a verb.
pub fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Mkfs(args) => mkfs::run(args),
        Verb::Mount(args) => mount::run(args),
        Verb::Umount(args) => umount::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Sync(args) => sync::run(&args),
        Verb::Lscp(args) => lscp::run(&args),
        Verb::Mkcp(args) => mkcp::run(&args),
        Verb::Chcp(args) => chcp::run(&args),
        Verb::Rmcp(args) => rmcp::run(&args),
        Verb::Lssu(args) => lssu::run(&args),
        Verb::Du(args) => du::run(&args),
        Verb::Dumpseg(args) => dumpseg::run(&args),
        Verb::Tune(args) => tune::run(&args),
        Verb::Map(args) => map::run(&args),
        Verb::Resize(args) => resize::run(&args),
        Verb::Clean(args) => clean::run(&args),
        Verb::Trim(args) => trim::run(&args),
        Verb::Retain(args) => retain::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Scrub(args) => scrub::run(&args),
        Verb::Rescue(args) => rescue::run(&args),
        Verb::Lab(args) => lab::run(&args),
        Verb::Repair(args) => repair::run(&args),
        Verb::Install(args) => install::run(&args),
        Verb::Serve(args) => mount::serve::run(args),
        Verb::MountHelper(args) => mount::helper::run(args),
        Verb::UmountHelper(args) => umount::helper(&args),
        Verb::FsckHelper(args) => fsck::run(&args),
    }
}
