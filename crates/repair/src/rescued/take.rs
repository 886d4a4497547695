//! Makes files what a rescue reads of them.

use silt_device::Overlay;
use silt_engine::mend::Mender;
use silt_engine::{Attr, Block, Tree, writable, zeroed};
use silt_format::dir::{self, file_type};
use silt_format::{Cno, Ino};
use silt_verify::rescue::{Content, Extent, Note, Origin, Problem, Tree as Read};

use super::{AS_IT_WAS, Lack, Wanted};
use crate::Result;

/// Why a file is not taken.
pub(super) enum Left {
    Memory,
    Space,
}

/// What it takes to take files.
pub(super) struct Take<'a, 't, 'r, 'd> {
    pub mender: &'a mut Mender,
    pub trial: &'a Overlay,
    pub tree: &'t Read<'r, 'd>,
    pub wanted: &'a Wanted<'a>,
    pub said: &'a mut Vec<String>,
}

impl Take<'_, '_, '_, '_> {
    /// Makes a file what the rescue reads of it, unless that is too much: then all stays as it is.
    pub fn file(&mut self, ino: u64, lack: Lack) -> Result<Option<Left>> {
        let (kind, parent) = match lack {
            Lack::Inode(kind, parent) => (kind, parent),
            Lack::Content => (file_type::UNKNOWN, Ino::ROOT.0),
        };
        let Some(inode) = self.tree.inode(ino, kind) else { return Ok(None) };
        let nr = Ino(ino);
        let bs = self.mender.volume().geometry().bs();
        let content = self.tree.content(&inode);
        // Of a directory the first block alone is made.
        if inode.raw.file_type() == 0o100_000
            && let Some(why) = self.too_much(&content, bs)
        {
            return Ok(Some(why));
        }
        let mut problem = self.tree.examine(b"", &inode, &content);
        let mut attr = Attr::of(&inode.raw);
        let mut own = false;
        match lack {
            Lack::Inode(..) => self.mender.make(nr, Attr { size: 0, ..attr.clone() })?,
            Lack::Content => {
                let v = self.mender.volume();
                let there = v.inode(Tree::Live, nr)?.attr.clone();
                attr.links = there.links;
                // Which file an older inode was is known of what was mended, and not of what a rescue takes.
                own = self.wanted.put_back.contains(&ino)
                    && matches!(inode.origin, Origin::Older { .. })
                    && there.file_type() == attr.file_type();
                if own {
                    attr = there.clone();
                }
                // It may have been of another type.
                *v.attr_mut(nr)? = Attr { size: there.size, ..attr.clone() };
                v.cut(nr, 0..u64::MAX)?;
            }
        }
        let v = self.mender.volume();
        attr.size = 0;
        match inode.raw.file_type() {
            0o040_000 => {
                let mut block = zeroed(bs);
                dir::init_first(writable(&mut block), nr, Ino(parent));
                v.write_block(nr, 0, block)?;
                attr.size = bs as u64;
            }
            0o120_000 => {
                let target = self.tree.link(&inode).unwrap_or_default();
                for (key, part) in target.chunks(bs).enumerate() {
                    let mut block = zeroed(bs);
                    writable(&mut block)[..part.len()].copy_from_slice(part);
                    v.write_block(nr, key as u64, block)?;
                }
                attr.size = target.len() as u64;
            }
            0o100_000 => {
                attr.size = content.size;
                v.attr_mut(nr)?.size = content.size;
                each_block(self.tree, &content, bs, |key, block| {
                    self.mender.volume().write_block(nr, key, block)?;
                    // A large one is not all in memory before it is written.
                    self.mender.relieve(self.wanted.now)?;
                    Ok(true)
                })?;
            }
            _ => {}
        }
        *self.mender.volume().attr_mut(nr)? = attr;
        problem.notes.retain(|note| !own || !matches!(note, Note::OlderAttributes { .. }));
        self.said.push(in_words(ino, &problem, own));
        self.mender.relieve(self.wanted.now)?;
        Ok(None)
    }

    /// What there is too little of for all that is read of a file.
    fn too_much(&mut self, content: &Content, bs: usize) -> Option<Left> {
        let behind = content.size.div_ceil(bs as u64);
        let blocks = content.mapped.extents.iter().take_while(|e| e.offset < behind);
        let blocks = blocks.fold(0u64, |sum, e| sum.saturating_add(e.len.min(behind - e.offset)));
        // What is written is there twice, as it was written and as it is read, with what tells where it is.
        let bytes = blocks.saturating_mul(bs as u64).saturating_add(self.mender.waiting());
        let written = bytes.saturating_mul(2).saturating_add(bytes / 4);
        if self.trial.memory().saturating_add(written) > self.wanted.memory {
            return Some(Left::Memory);
        }
        let fits = !self.wanted.what_fits || self.mender.volume().check_space(blocks).is_ok();
        (!fits).then_some(Left::Space)
    }
}

/// What a file is now.
fn in_words(ino: u64, problem: &Problem, own: bool) -> String {
    let mut but = Vec::new();
    if own {
        but.push("its owner, permissions and times are those that it was mended with".into());
    }
    if problem.missing_bytes() > 0 {
        but.push(format!("{} bytes are lost", problem.missing_bytes()));
    }
    for note in &problem.notes {
        but.push(match note {
            Note::Unverified { bytes } => format!("{bytes} bytes lie in logs that do not verify"),
            Note::Doubtful => "its inode or its map lies in a log that does not verify".into(),
            Note::OlderAttributes { cno } => format!("its attributes are those of checkpoint {}", Cno(*cno)),
            Note::AttributesLost => "its owner, permissions and times are lost".into(),
            Note::SizeGuessed => "of zeros at its end there may be too few or too many".into(),
            _ => continue,
        });
    }
    if but.is_empty() {
        return format!("inode {ino} {AS_IT_WAS}");
    }
    format!("inode {ino} is there as a rescue reads it: {}", but.join(", "))
}

/// Calls `f` with the blocks of a file up to its end, what lies behind that and what cannot be read as zeros, until it
/// returns false.
pub(super) fn each_block(
    tree: &Read<'_, '_>,
    content: &Content,
    bs: usize,
    mut f: impl FnMut(u64, Block) -> Result<bool>,
) -> Result<()> {
    let behind = content.size.div_ceil(bs as u64);
    for e in &content.mapped.extents {
        if e.offset >= behind {
            break;
        }
        let len = e.len.min(behind - e.offset);
        let (mut done, mut block, mut filled) = (Ok(true), zeroed(bs), 0);
        let mut key = e.offset;
        tree.read_run(&Extent { len, ..*e }, |_, bytes| {
            let mut bytes = bytes.unwrap_or(&[0; 512]);
            while !bytes.is_empty() {
                let n = bytes.len().min(bs - filled);
                let (some, rest) = bytes.split_at(n);
                writable(&mut block)[filled..filled + n].copy_from_slice(some);
                (bytes, filled) = (rest, filled + n);
                if filled == bs {
                    let used = usize::try_from(content.size - key * bs as u64).unwrap_or(bs).min(bs);
                    writable(&mut block)[used..].fill(0);
                    done = f(key, std::mem::replace(&mut block, zeroed(bs)));
                    (key, filled) = (key + 1, 0);
                    if !matches!(done, Ok(true)) {
                        return false;
                    }
                }
            }
            true
        });
        if !done? {
            break;
        }
    }
    Ok(())
}
