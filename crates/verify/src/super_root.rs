//! Super root blocks of all logs that have one (spec 3.6).

use silt_format::BlockNr;
use silt_format::super_root::SuperRoot;

use crate::context::Context;
use crate::inode;
use crate::invariants as inv;
use crate::report::Place;
use crate::search::Log;

/// Checks the super root at the end of a log.
pub(crate) fn check(c: &Context<'_>, log: &Log) {
    let g = &c.r.g;
    let at = log.end() - 1;
    let place = Place::block(at).at_cno(log.header.cno.get());
    let bytes = match c.r.block(BlockNr(at)) {
        Ok(b) => b,
        Err(e) => {
            c.out.add(&inv::DEVICE_READ, place, e);
            return;
        }
    };
    let root = match SuperRoot::parse(g, &bytes) {
        Ok(root) => root,
        Err(e) => {
            c.out.add(&inv::ROOT_BLOCK, place, e.to_string());
            return;
        }
    };
    let n = 16 + 3 * g.inode_size as usize;
    let written = bytes.get(4..8).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let flags = written >> 16;
    if bytes.get(n..).is_some_and(|rest| rest.iter().any(|b| *b != 0)) || flags != 0 {
        c.out.add(&inv::ROOT_RESERVED, place, format!("flags {flags:#x}, or unused bytes that are not zero"));
    }
    if root.nongc_ctime > log.header.create.get() {
        let message = format!("{} is later than its log's {}", root.nongc_ctime, log.header.create);
        c.out.add(&inv::ROOT_NONGC, place, message);
    }
    for (i, inode) in [&root.dat, &root.cpfile, &root.sufile].into_iter().enumerate() {
        inode::check_zero(c, inode, place);
        let from = 16 + i * g.inode_size as usize;
        let extra = bytes.get(from + silt_format::inode::SIZE..from + g.inode_size as usize);
        if extra.is_some_and(|e| e.iter().any(|b| *b != 0)) {
            c.out.add(&inv::INODE_ZERO, place, "bytes behind an inode are not zero");
        }
    }
}
