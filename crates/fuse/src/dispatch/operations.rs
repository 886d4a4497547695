//! One arm an operation: takes the body apart and calls the method.
//!
//! A body that does not fit drops the reply object, which answers EIO.

use crate::abi::{self, IoctlFlags, fattr, opcode as op};
use crate::attr::{NodeId, Timestamp};
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::ops::{
    Context, CopyFileRange, Create, Fallocate, Ioctl, Lock, Lseek, Open, Poll, Read, ReadDir, Release,
    Rename, SetAttr, SetTime, SetXattr, StatxArgs, Write,
};
use crate::reply::{
    Listing, Raw, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyStatx,
    ReplyWrite, ReplyXattr,
};
use crate::request::{Body, Malformed};

/// The longest target of a symbolic link that the kernel takes, in bytes.
const SYMLINK_MAX: usize = 4095;

/// Calls the method of `code`.
pub(super) fn call<F: Filesystem>(
    fs: &F,
    code: u32,
    node: NodeId,
    mut ctx: Context,
    mut body: Body<'_>,
    raw: Raw,
) -> Result<(), Malformed> {
    match code {
        op::LOOKUP => fs.lookup(&ctx, node, body.lookup_name()?, ReplyEntry::new(raw)),
        op::GETATTR => {
            let get: abi::GetattrIn = body.take()?;
            let fh = (get.getattr_flags & abi::GETATTR_FH != 0).then_some(get.fh);
            fs.getattr(&ctx, node, fh, ReplyAttr::new(raw));
        }
        op::SETATTR => fs.setattr(&ctx, node, &setattr(&body.take()?)?, ReplyAttr::new(raw)),
        op::READLINK => fs.readlink(&ctx, node, ReplyData::new(raw, SYMLINK_MAX)),
        op::SYMLINK => {
            let name = body.name()?;
            fs.symlink(&ctx, node, name, body.string()?, ReplyEntry::new(raw));
        }
        op::MKNOD => {
            let make: abi::MknodIn = body.take()?;
            ctx.umask = make.umask;
            fs.mknod(&ctx, node, body.name()?, make.mode, make.rdev, ReplyEntry::new(raw));
        }
        op::MKDIR => {
            let make: abi::MkdirIn = body.take()?;
            ctx.umask = make.umask;
            fs.mkdir(&ctx, node, body.name()?, make.mode, ReplyEntry::new(raw));
        }
        op::UNLINK => fs.unlink(&ctx, node, body.name()?, ReplyEmpty::new(raw)),
        op::RMDIR => fs.rmdir(&ctx, node, body.name()?, ReplyEmpty::new(raw)),
        op::RENAME => {
            let rename: abi::RenameIn = body.take()?;
            let rename = names(rename.newdir, 0, &mut body)?;
            fs.rename(&ctx, node, &rename, ReplyEmpty::new(raw));
        }
        op::RENAME2 => {
            let rename: abi::Rename2In = body.take()?;
            let rename = names(rename.newdir, rename.flags, &mut body)?;
            fs.rename(&ctx, node, &rename, ReplyEmpty::new(raw));
        }
        op::LINK => {
            let link: abi::LinkIn = body.take()?;
            fs.link(&ctx, link.oldnodeid, node, body.name()?, ReplyEntry::new(raw));
        }
        op::OPEN => fs.open(&ctx, node, &open(&body.take()?), ReplyOpen::new(raw)),
        op::OPENDIR => fs.opendir(&ctx, node, &open(&body.take()?), ReplyOpen::new(raw)),
        op::CREATE => {
            let make: abi::CreateIn = body.take()?;
            ctx.umask = make.umask;
            fs.create(&ctx, node, body.name()?, &create(&make), ReplyCreate::new(raw));
        }
        op::TMPFILE => {
            let make: abi::CreateIn = body.take()?;
            ctx.umask = make.umask;
            fs.tmpfile(&ctx, node, &create(&make), ReplyCreate::new(raw));
        }
        op::READ => {
            let read: abi::ReadIn = body.take()?;
            let limit = usize::try_from(read.size).map_err(|_| Malformed)?;
            let read = Read {
                fh: read.fh,
                offset: read.offset,
                size: read.size,
                flags: read.flags,
                lock_owner: (read.read_flags & abi::READ_LOCKOWNER != 0).then_some(read.lock_owner),
            };
            fs.read(&ctx, node, &read, ReplyData::new(raw, limit));
        }
        op::WRITE => fs.write(&ctx, node, &write(&mut body)?, ReplyWrite::new(raw)),
        op::FLUSH => {
            let flush: abi::FlushIn = body.take()?;
            fs.flush(&ctx, node, flush.fh, flush.lock_owner, ReplyEmpty::new(raw));
        }
        op::RELEASE => fs.release(&ctx, node, &release(&body.take()?), ReplyEmpty::new(raw)),
        op::RELEASEDIR => fs.releasedir(&ctx, node, &release(&body.take()?), ReplyEmpty::new(raw)),
        op::FSYNC => {
            let sync: abi::FsyncIn = body.take()?;
            fs.fsync(&ctx, node, sync.fh, is_datasync(&sync), ReplyEmpty::new(raw));
        }
        op::FSYNCDIR => {
            let sync: abi::FsyncIn = body.take()?;
            fs.fsyncdir(&ctx, node, sync.fh, is_datasync(&sync), ReplyEmpty::new(raw));
        }
        op::READDIR => {
            let read: abi::ReadIn = body.take()?;
            let listing = Listing::new(read.size);
            let read = ReadDir { fh: read.fh, offset: read.offset };
            fs.readdir(&ctx, node, &read, ReplyDirectory::new(raw, listing));
        }
        op::READDIRPLUS => {
            let read: abi::ReadIn = body.take()?;
            let listing = Listing::new(read.size);
            let read = ReadDir { fh: read.fh, offset: read.offset };
            fs.readdirplus(&ctx, node, &read, ReplyDirectoryPlus::new(raw, listing));
        }
        op::STATFS => fs.statfs(&ctx, node, ReplyStatfs::new(raw)),
        op::SETXATTR => {
            let set: abi::SetxattrIn = body.take()?;
            let name = attribute(&mut body)?;
            let set = SetXattr { name, value: body.bytes(set.size)?, flags: set.flags };
            fs.setxattr(&ctx, node, &set, ReplyEmpty::new(raw));
        }
        op::GETXATTR => {
            let get: abi::GetxattrIn = body.take()?;
            fs.getxattr(&ctx, node, attribute(&mut body)?, ReplyXattr::new(raw, get.size));
        }
        op::LISTXATTR => {
            let list: abi::GetxattrIn = body.take()?;
            fs.listxattr(&ctx, node, ReplyXattr::new(raw, list.size));
        }
        op::REMOVEXATTR => fs.removexattr(&ctx, node, attribute(&mut body)?, ReplyEmpty::new(raw)),
        op::ACCESS => {
            let access: abi::AccessIn = body.take()?;
            fs.access(&ctx, node, access.mask, ReplyEmpty::new(raw));
        }
        op::GETLK => fs.getlk(&ctx, node, &lock(&body.take()?), ReplyLock::new(raw)),
        op::SETLK => fs.setlk(&ctx, node, &lock(&body.take()?), false, ReplyEmpty::new(raw)),
        op::SETLKW => fs.setlk(&ctx, node, &lock(&body.take()?), true, ReplyEmpty::new(raw)),
        op::BMAP => {
            let bmap: abi::BmapIn = body.take()?;
            fs.bmap(&ctx, node, bmap.block, bmap.blocksize, ReplyBmap::new(raw));
        }
        op::IOCTL => {
            let ioctl: abi::IoctlIn = body.take()?;
            let limit = usize::try_from(ioctl.out_size).map_err(|_| Malformed)?;
            let ioctl = Ioctl {
                fh: ioctl.fh,
                flags: IoctlFlags::from_bits_retain(ioctl.flags),
                cmd: ioctl.cmd,
                arg: ioctl.arg,
                input: body.bytes(ioctl.in_size)?,
            };
            fs.ioctl(&ctx, node, &ioctl, ReplyIoctl::new(raw, limit));
        }
        op::POLL => {
            let poll: abi::PollIn = body.take()?;
            let wake = poll.flags & abi::POLL_SCHEDULE_NOTIFY != 0;
            let poll = Poll { fh: poll.fh, kh: poll.kh, events: poll.events, wake };
            fs.poll(&ctx, node, &poll, ReplyPoll::new(raw));
        }
        op::FALLOCATE => {
            let allocate: abi::FallocateIn = body.take()?;
            let abi::FallocateIn { fh, offset, length, mode, .. } = allocate;
            fs.fallocate(&ctx, node, &Fallocate { fh, offset, length, mode }, ReplyEmpty::new(raw));
        }
        op::LSEEK => {
            let seek: abi::LseekIn = body.take()?;
            let seek = Lseek { fh: seek.fh, offset: seek.offset, whence: seek.whence };
            fs.lseek(&ctx, node, &seek, ReplyLseek::new(raw));
        }
        op::COPY_FILE_RANGE => {
            let copy: abi::CopyFileRangeIn = body.take()?;
            let copy = CopyFileRange {
                fh_in: copy.fh_in,
                offset_in: copy.off_in,
                node_out: copy.nodeid_out,
                fh_out: copy.fh_out,
                offset_out: copy.off_out,
                length: copy.len,
                flags: copy.flags,
            };
            fs.copy_file_range(&ctx, node, &copy, ReplyWrite::new(raw));
        }
        op::SYNCFS => fs.syncfs(&ctx, node, ReplyEmpty::new(raw)),
        op::STATX => {
            let stat: abi::StatxIn = body.take()?;
            let fh = (stat.getattr_flags & abi::GETATTR_FH != 0).then_some(stat.fh);
            let args = StatxArgs { fh, flags: stat.sx_flags, mask: stat.sx_mask };
            fs.statx(&ctx, node, &args, ReplyStatx::new(raw));
        }
        _ => raw.error(Errno::ENOSYS),
    }
    Ok(())
}

fn is_datasync(sync: &abi::FsyncIn) -> bool {
    sync.fsync_flags & abi::FSYNC_FDATASYNC != 0
}

/// The two names of a rename.
fn names<'a>(new_parent: NodeId, flags: u32, body: &mut Body<'a>) -> Result<Rename<'a>, Malformed> {
    let name = body.name()?;
    Ok(Rename { name, new_parent, new_name: body.name()?, flags })
}

/// The name of an extended attribute, which may hold slashes.
fn attribute<'a>(body: &mut Body<'a>) -> Result<&'a [u8], Malformed> {
    let name = body.string()?;
    if name.is_empty() { Err(Malformed) } else { Ok(name) }
}

fn open(open: &abi::OpenIn) -> Open {
    Open { flags: open.flags, kill_suidgid: open.open_flags & abi::OPEN_KILL_SUIDGID != 0 }
}

fn create(create: &abi::CreateIn) -> Create {
    let kill_suidgid = create.open_flags & abi::OPEN_KILL_SUIDGID != 0;
    Create { mode: create.mode, flags: create.flags, kill_suidgid }
}

fn release(release: &abi::ReleaseIn) -> Release {
    let has = |flag| release.release_flags & flag != 0;
    Release {
        fh: release.fh,
        flags: release.flags,
        flush: has(abi::RELEASE_FLUSH),
        flock_owner: has(abi::RELEASE_FLOCK_UNLOCK).then_some(release.lock_owner),
    }
}

fn write<'a>(body: &mut Body<'a>) -> Result<Write<'a>, Malformed> {
    let write: abi::WriteIn = body.take()?;
    let has = |flag| write.write_flags & flag != 0;
    Ok(Write {
        fh: write.fh,
        offset: write.offset,
        data: body.bytes(write.size)?,
        flags: write.flags,
        lock_owner: has(abi::WRITE_LOCKOWNER).then_some(write.lock_owner),
        cached: has(abi::WRITE_CACHE),
        kill_suidgid: has(abi::WRITE_KILL_SUIDGID),
    })
}

fn lock(lock: &abi::LkIn) -> Lock {
    Lock {
        fh: lock.fh,
        owner: lock.owner,
        start: lock.lk.start,
        end: lock.lk.end,
        typ: lock.lk.typ,
        pid: lock.lk.pid,
        flock: lock.lk_flags & abi::LK_FLOCK != 0,
    }
}

fn setattr(set: &abi::SetattrIn) -> Result<SetAttr, Malformed> {
    let has = |flag| set.valid & flag != 0;
    let time = |given, now, secs, nanos| {
        if has(now) {
            Ok(Some(SetTime::Now))
        } else if has(given) {
            Timestamp::from_wire(secs, nanos).map(|time| Some(SetTime::At(time))).ok_or(Malformed)
        } else {
            Ok(None)
        }
    };
    let ctime = Timestamp::from_wire(set.ctime, set.ctimensec);
    Ok(SetAttr {
        mode: has(fattr::MODE).then_some(set.mode),
        uid: has(fattr::UID).then_some(set.uid),
        gid: has(fattr::GID).then_some(set.gid),
        size: has(fattr::SIZE).then_some(set.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, set.atime, set.atimensec)?,
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, set.mtime, set.mtimensec)?,
        ctime: if has(fattr::CTIME) { Some(ctime.ok_or(Malformed)?) } else { None },
        fh: has(fattr::FH).then_some(set.fh),
        lock_owner: has(fattr::LOCKOWNER).then_some(set.lock_owner),
        kill_suidgid: has(fattr::KILL_SUIDGID),
    })
}
