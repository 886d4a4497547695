//! Renaming: moving, replacing, exchanging.
//!
//! Everything that can fail is checked before the first change; the new name is made before the
//! old one goes, and taken back should the rest fail.

use hashbrown::HashSet;
use silt_engine::{Attr, Tree};
use silt_format::dir::file_type;

use crate::dirs::{Found, is_dots};
use crate::error::{FsError, Of, Result};
use crate::names::{NAME_BLOCKS, check_name};
use crate::types::{Context, S_IFDIR, S_IFREG, is_fixed, is_immutable, rename_flags};
use crate::{Fs, Ino, is_at_link_max};

/// What a rename is about, found and checked.
struct Move {
    old_dir: Ino,
    new_dir: Ino,
    source: (Found, Attr),
    target: Option<(Found, Attr)>,
    exchange: bool,
    /// Why the target cannot be used: its entry is replaced, and no more is asked of it.
    broken: Option<FsError>,
}

impl Move {
    fn source_is_dir(&self) -> bool {
        self.source.1.is_dir()
    }

    fn target_is_dir(&self) -> bool {
        self.target.as_ref().is_some_and(|t| t.1.is_dir())
    }
}

impl Fs {
    /// Whether `above` is `below` or a directory that leads to it. An entry of `below` itself
    /// (`inside`) cannot lead to it unless it is `below` under a false name.
    fn leads_to(&mut self, above: Ino, below: Ino, inside: bool) -> Result<bool> {
        if inside {
            return Ok(above == below || above == Ino::ROOT);
        }
        let mut at = below;
        let mut seen = HashSet::new();
        loop {
            if at == above {
                return Ok(true);
            }
            if at == Ino::ROOT {
                return Ok(false);
            }
            if !seen.insert(at.0) {
                return Err(FsError::damaged(at, "the directories above go round in a circle"));
            }
            at = self.live_parent(at)?;
        }
    }

    /// Renames, with `flags` of [`rename_flags`]. Returns the inode that was replaced, if any.
    /// EINVAL: a directory into itself or below, unknown flags.
    pub fn rename(
        &mut self,
        ctx: &Context,
        old_dir: Ino,
        old_name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<Option<Ino>> {
        use rename_flags::{EXCHANGE, NOREPLACE};
        if flags & !(NOREPLACE | EXCHANGE) != 0 || flags == NOREPLACE | EXCHANGE {
            return Err(FsError::Invalid);
        }
        self.writable()?;
        let old_above = self.parent_attr(old_dir)?;
        let new_above = if new_dir == old_dir { old_above.clone() } else { self.parent_attr(new_dir)? };
        if is_dots(old_name) || is_dots(new_name) {
            return Err(FsError::Busy);
        }
        check_name(old_name)?;
        check_name(new_name)?;
        let source = self.dir_find(Tree::Live, old_dir, old_name)?.ok_or(FsError::NotFound)?;
        let target = self.dir_find(Tree::Live, new_dir, new_name)?;
        let exchange = flags & EXCHANGE != 0;
        match target {
            Some(_) if flags & NOREPLACE != 0 => return Err(FsError::Exists),
            None if exchange => return Err(FsError::NotFound),
            _ => {}
        }
        let source_attr = self.entry_attr(&source)?;
        let mut broken = None;
        let target_attr = match target.map(|t| (t, self.entry_attr(&t))) {
            // What cannot be used can be replaced, by what its directory takes it for.
            Some((t, Err(e @ FsError::Io { .. }))) if !exchange => {
                broken = Some(e);
                let mode = if t.file_type == file_type::DIR { S_IFDIR } else { S_IFREG };
                Some(Attr { mode, links: 1, ..source_attr.clone() })
            }
            Some((_, attr)) => Some(attr?),
            None => None,
        };
        let inside = old_dir == new_dir;
        if source_attr.is_dir() && self.leads_to(source.ino, new_dir, inside)? {
            return Err(FsError::Invalid);
        }
        if let (Some(t), Some(a)) = (&target, &target_attr)
            && a.is_dir()
            && broken.is_none()
            && self.leads_to(t.ino, old_dir, inside)?
        {
            return Err(if exchange { FsError::Invalid } else { FsError::NotEmpty });
        }
        if target.is_some_and(|t| t.ino == source.ino) {
            return Ok(None);
        }
        self.may_remove(&old_above, &source)?;
        match &target {
            None if is_immutable(&new_above) => return Err(FsError::NotPermitted),
            None => {}
            Some(_) if broken.is_some() && is_fixed(&new_above) => return Err(FsError::NotPermitted),
            Some(_) if broken.is_some() => {}
            Some(t) => {
                self.may_remove(&new_above, t)?;
            }
        }
        let target = target.zip(target_attr);
        let m = Move { old_dir, new_dir, source: (source, source_attr), target, exchange, broken };
        self.check_move(&m, &old_above, &new_above)?;
        if m.exchange { self.do_exchange(ctx, &m) } else { self.do_move(ctx, &m, old_name, new_name) }
    }

    fn check_move(&mut self, m: &Move, old_above: &Attr, new_above: &Attr) -> Result<()> {
        if m.target.is_some() && !m.exchange {
            match (m.source_is_dir(), m.target_is_dir()) {
                (true, false) => return Err(FsError::NotDir),
                (false, true) => return Err(FsError::IsDir),
                _ => {}
            }
        }
        let across = m.old_dir != m.new_dir;
        if across {
            let over = m.source_is_dir() && !m.target_is_dir() && is_at_link_max(new_above);
            let back = m.exchange && !m.source_is_dir() && m.target_is_dir() && is_at_link_max(old_above);
            if over || back {
                return Err(FsError::TooManyLinks);
            }
        }
        if let Some((t, _)) = &m.target
            && !m.exchange
            && m.target_is_dir()
        {
            match &m.broken {
                Some(e) => self.count_as_lost(t.ino, e.clone())?,
                None if !self.dir_is_removable(t.ino)? => return Err(FsError::NotEmpty),
                None => {}
            }
        }
        // What only takes the place of something else, or of itself, hardly takes any.
        if across && m.target.is_none() {
            self.need(NAME_BLOCKS)?;
        } else {
            self.need(NAME_BLOCKS).or_else(|_| self.need_for_change(None))?;
        }
        if across && m.source_is_dir() {
            self.dir_check_parent(m.source.0.ino)?;
        }
        if let Some((t, _)) = &m.target
            && across
            && m.exchange
            && m.target_is_dir()
        {
            self.dir_check_parent(t.ino)?;
        }
        Ok(())
    }

    fn do_move(&mut self, ctx: &Context, m: &Move, old_name: &[u8], new_name: &[u8]) -> Result<Option<Ino>> {
        let (source, source_attr) = &m.source;
        let kind = file_type::from_mode(source_attr.mode);
        match &m.target {
            Some((t, _)) => self.dir_replace(m.new_dir, t, source.ino, kind)?,
            None => self.dir_insert(m.new_dir, new_name, source.ino, kind)?,
        }
        if let Err(e) = self.dir_remove(m.old_dir, old_name, source) {
            // Best effort: the first error is what counts.
            let _ = match &m.target {
                Some((t, _)) => self.dir_replace(m.new_dir, t, t.ino, t.file_type),
                None => match self.dir_find(Tree::Live, m.new_dir, new_name) {
                    Ok(Some(made)) => self.dir_remove(m.new_dir, new_name, &made),
                    _ => Ok(()),
                },
            };
            return Err(e);
        }
        let across = m.old_dir != m.new_dir;
        let moved = i32::from(m.source_is_dir());
        let replaced = i32::from(m.target_is_dir());
        if across {
            if m.source_is_dir() {
                self.dir_set_parent(source.ino, m.new_dir)?;
            }
            self.touch_dir(ctx, m.old_dir, -moved)?;
            self.touch_dir(ctx, m.new_dir, moved - replaced)?;
        } else {
            self.touch_dir(ctx, m.old_dir, -replaced)?;
        }
        self.volume.attr_mut(source.ino).of(source.ino)?.ctime = ctx.now;
        self.note_parent(source.ino, m.new_dir);
        match &m.target {
            Some((t, a)) if m.broken.is_some() => self.drop_unread(ctx, t, if a.is_dir() { 2 } else { 1 })?,
            Some((t, a)) if a.is_dir() => self.drop_dir(ctx, t.ino)?,
            Some((t, _)) => self.drop_link(ctx, t.ino)?,
            None => {}
        }
        Ok(m.target.as_ref().map(|(t, _)| t.ino))
    }

    fn do_exchange(&mut self, ctx: &Context, m: &Move) -> Result<Option<Ino>> {
        let (source, source_attr) = &m.source;
        let Some((target, target_attr)) = &m.target else { return Err(FsError::NotFound) };
        self.dir_replace(m.new_dir, target, source.ino, file_type::from_mode(source_attr.mode))?;
        let kind = file_type::from_mode(target_attr.mode);
        if let Err(e) = self.dir_replace(m.old_dir, source, target.ino, kind) {
            // Best effort: the first error is what counts.
            let _ = self.dir_replace(m.new_dir, target, target.ino, target.file_type);
            return Err(e);
        }
        let (s, t) = (i32::from(m.source_is_dir()), i32::from(m.target_is_dir()));
        if m.old_dir == m.new_dir {
            self.touch_dir(ctx, m.old_dir, 0)?;
        } else {
            if m.source_is_dir() {
                self.dir_set_parent(source.ino, m.new_dir)?;
            }
            if m.target_is_dir() {
                self.dir_set_parent(target.ino, m.old_dir)?;
            }
            self.touch_dir(ctx, m.old_dir, t - s)?;
            self.touch_dir(ctx, m.new_dir, s - t)?;
        }
        self.note_parent(source.ino, m.new_dir);
        self.note_parent(target.ino, m.old_dir);
        for ino in [source.ino, target.ino] {
            self.volume.attr_mut(ino).of(ino)?.ctime = ctx.now;
        }
        Ok(None)
    }
}
