//! Attributes: asking for them, changing them, inode flags, access times.

use silt_engine::{Attr, Time, Tree};
use silt_format::inode::flags;

use crate::error::{FsError, Of, Result};
use crate::types::{
    Context, S_IFMT, S_ISGID, SetAttr, SetTime, Stat, is_fixed, is_immutable, without_suidgid,
};
use crate::{Fs, Ino};

/// Flags that programs may see.
const VISIBLE: u32 = 0x0003_dfff;
/// A day in seconds: access times older than that are renewed in any case.
const DAY: i64 = 86_400;

impl SetTime {
    fn resolve(self, now: Time) -> Time {
        match self {
            SetTime::Now => now,
            SetTime::At(t) => t,
        }
    }
}

impl Fs {
    /// Attributes of an inode. ESTALE: it is not in use, or has no links and nobody holds it.
    pub fn getattr(&mut self, tree: Tree, ino: Ino) -> Result<Stat> {
        let block_size = self.volume.geometry().block_size;
        let i = self.volume.inode(tree, ino).of(ino)?;
        let a = &i.attr;
        if a.links == 0 && (tree != Tree::Live || !self.nodes.contains_key(&ino.0)) {
            return Err(FsError::Stale);
        }
        let atime = match tree {
            Tree::Live => self.atimes.get(&ino.0).copied(),
            Tree::Past(_) => None,
        };
        Ok(Stat {
            ino,
            mode: a.mode,
            links: a.links,
            uid: a.uid,
            gid: a.gid,
            size: a.size,
            blocks: i.blocks_512(block_size),
            counted: i.is_counted(block_size),
            atime: atime.unwrap_or(a.mtime),
            mtime: a.mtime,
            ctime: a.ctime,
            device: a.device,
            flags: a.flags & VISIBLE,
            generation: a.generation,
            block_size,
        })
    }

    /// Changes attributes. EPERM: the inode is immutable or append-only.
    pub fn setattr(&mut self, ctx: &Context, ino: Ino, set: &SetAttr) -> Result<Stat> {
        self.writable()?;
        let before = self.live(ino)?;
        Self::may_set(&before, set)?;
        if set.size.is_some() {
            self.check_regular(&before)?;
        }
        match set.size {
            Some(size) if size < before.size => self.shorten_in_parts(ctx, ino, &before, set, size)?,
            _ => self.need_for_change(None)?,
        }
        if let Some(size) = set.size {
            self.resize(ino, before.size, size)?;
        }
        let mut after = before.clone();
        if let Some(size) = set.size {
            after.size = size;
            after.mtime = ctx.now;
        }
        after.uid = set.uid.unwrap_or(after.uid);
        after.gid = set.gid.unwrap_or(after.gid);
        if let Some(mode) = set.mode {
            after.mode = (after.mode & S_IFMT) | (mode & 0o7777);
            if after.mode & S_ISGID != 0 && ctx.is_outside(after.gid) {
                after.mode &= !S_ISGID;
            }
        } else if !after.is_dir() && (set.uid.is_some() || set.gid.is_some() || set.kill_suidgid) {
            after.mode = without_suidgid(after.mode);
            if (set.uid.is_some() || set.gid.is_some()) && ctx.is_outside(before.gid) {
                after.mode &= !S_ISGID;
            }
        }
        if let Some(t) = set.mtime {
            after.mtime = t.resolve(ctx.now);
        }
        if let Some(t) = set.atime {
            self.atimes.insert(ino.0, t.resolve(ctx.now));
        }
        after.ctime = set.ctime.unwrap_or(ctx.now);
        self.store(ino, &before, after)?;
        self.getattr(Tree::Live, ino)
    }

    /// Puts changed attributes in place, as a change of times only where it is no more.
    pub(crate) fn store(&mut self, ino: Ino, before: &Attr, after: Attr) -> Result<()> {
        let times_only = Attr { mtime: before.mtime, ctime: before.ctime, ..after.clone() } == *before;
        let place =
            if times_only { self.volume.times_mut(ino) } else { self.volume.attr_mut(ino) }.of(ino)?;
        *place = after;
        Ok(())
    }

    /// What inode flags forbid.
    fn may_set(attr: &Attr, set: &SetAttr) -> Result<()> {
        let sets_time = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_)));
        let touches = set.atime.is_some() || set.mtime.is_some();
        let fixed = set.mode.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.size.is_some()
            || sets_time(set.atime)
            || sets_time(set.mtime);
        if (fixed && is_fixed(attr)) || (touches && is_immutable(attr)) {
            return Err(FsError::NotPermitted);
        }
        Ok(())
    }

    pub(crate) fn check_regular(&self, attr: &Attr) -> Result<()> {
        if attr.is_regular() {
            Ok(())
        } else if attr.is_dir() {
            Err(FsError::IsDir)
        } else {
            Err(FsError::Invalid)
        }
    }

    /// Inode flags (`FS_IOC_GETFLAGS`).
    pub fn flags(&mut self, tree: Tree, ino: Ino) -> Result<u32> {
        Ok(self.getattr(tree, ino)?.flags)
    }

    /// Whether changes of a live inode are to be durable before they are answered: the flag `SYNC`, and for
    /// directories `DIRSYNC`, too.
    pub fn is_sync(&mut self, ino: Ino) -> bool {
        self.volume.inode(Tree::Live, ino).is_ok_and(|i| {
            let asks = if i.attr.is_dir() { flags::SYNC | flags::DIRSYNC } else { flags::SYNC };
            i.attr.flags & asks != 0
        })
    }

    /// What inode flags there are, and what they would be with those that are wanted: what users may set and the type can
    /// carry, the rest stays. Errors as of [`Fs::set_flags`].
    pub fn flags_after(&mut self, ctx: &Context, ino: Ino, wanted: u32) -> Result<(u32, u32)> {
        self.writable()?;
        let before = self.live(ino)?;
        if !(before.is_dir() || before.is_regular()) {
            return Err(FsError::NotSupported);
        }
        if !ctx.privileged && ctx.uid != before.uid {
            return Err(FsError::NotPermitted);
        }
        // Who changes one flag sends all that he was told of with it.
        if wanted & !before.flags & !flags::KNOWN != 0 {
            return Err(FsError::NotSupported);
        }
        let settable = flags::USER_MODIFIABLE;
        let after = (before.flags & !settable) | (flags::mask(before.mode, wanted) & settable);
        if (after ^ before.flags) & (flags::IMMUTABLE | flags::APPEND) != 0 && !ctx.privileged {
            return Err(FsError::NotPermitted);
        }
        Ok((before.flags, after))
    }

    /// Sets inode flags (`FS_IOC_SETFLAGS`). Regular files and directories only. EPERM: not the owner, or without privilege
    /// where immutable or append-only would change. EOPNOTSUPP: flags of other file systems.
    pub fn set_flags(&mut self, ctx: &Context, ino: Ino, wanted: u32) -> Result<()> {
        let (_, new) = self.flags_after(ctx, ino, wanted)?;
        let before = self.live(ino)?;
        self.need_for_change(None)?;
        if (new ^ before.flags) & flags::APPEND != 0 {
            self.appends.forget(ino.0);
        }
        let after = Attr { flags: new, ctime: ctx.now, ..before.clone() };
        self.store(ino, &before, after)
    }

    /// The generation of an inode, which tells its number's users apart over time.
    pub fn generation(&mut self, tree: Tree, ino: Ino) -> Result<u32> {
        Ok(self.getattr(tree, ino)?.generation)
    }

    /// Notes that a live inode was read: renews its access time if it is older than its last
    /// change or than a day.
    pub fn accessed(&mut self, ino: Ino, now: Time) {
        let Ok(stat) = self.getattr(Tree::Live, ino) else { return };
        if stat.flags & flags::NOATIME != 0 {
            return;
        }
        let fresh = self.atimes.contains_key(&ino.0)
            && stat.atime > stat.mtime
            && stat.atime > stat.ctime
            && now.secs.saturating_sub(stat.atime.secs) < DAY;
        if !fresh {
            self.atimes.insert(ino.0, now);
        }
    }
}
