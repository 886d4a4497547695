//! A tree as a manifest, to be compared.

use std::collections::BTreeMap;

use silt_fs::{FsError, Ino, Stat, Tree};
use silt_model::hash::Digest;
use silt_model::manifest::{Body, Columns, Entry, Manifest, Time};
use silt_model::path::TreePath;

use crate::FsTarget;

impl FsTarget {
    /// One entry of it.
    pub(crate) fn entry(
        &mut self,
        tree: Tree,
        path: TreePath,
        stat: &Stat,
        columns: Columns,
    ) -> Result<Entry, FsError> {
        let body = match stat.file_type() {
            0o100_000 if columns.data => Body::Data(self.digest(tree, stat)?),
            0o100_000 => Body::Data(Digest::default()),
            0o120_000 => Body::Target(self.fs.readlink(tree, stat.ino)?),
            _ => Body::Nothing,
        };
        let flagged = matches!(stat.file_type(), 0o100_000 | 0o040_000);
        Ok(Entry {
            path,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            size: Some(stat.size).filter(|_| !stat.is_dir()),
            mtime: Some(Time { sec: stat.mtime.secs, nsec: stat.mtime.nanos }),
            ctime: Some(Time { sec: stat.ctime.secs, nsec: stat.ctime.nanos }),
            nlink: stat.links,
            rdev: stat.device,
            blocks: Some(stat.blocks),
            flags: flagged.then_some(stat.flags),
            ino: Some(stat.ino.0),
            generation: flagged.then_some(stat.generation),
            same_as: None,
            body,
        })
    }

    /// Holes are found by seeking, so that far offsets cost nothing.
    fn digest(&mut self, tree: Tree, stat: &Stat) -> Result<Digest, FsError> {
        use silt_fs::Seek;
        let mut digest = Digest::default();
        let mut at = 0;
        loop {
            at = match self.fs.seek(tree, stat.ino, at, Seek::Data) {
                Ok(at) => at,
                Err(FsError::NoData) => return Ok(digest),
                Err(e) => return Err(e),
            };
            let end = self.fs.seek(tree, stat.ino, at, Seek::Hole)?;
            while at < end {
                // Parts end at round offsets: what the digest asks for.
                let n = (end - at).min((1 << 20) - at % (1 << 20));
                let data = self.fs.read(tree, stat.ino, at, n as usize)?;
                digest.add(at, &data);
                at += n;
            }
        }
    }

    /// Lists a whole tree.
    pub fn tree(&mut self, tree: Tree, columns: Columns) -> Result<Manifest, FsError> {
        let mut manifest = Manifest::new();
        let root = self.fs.getattr(tree, Ino::ROOT)?;
        let mut todo = vec![(TreePath::root(), root)];
        let mut inodes = BTreeMap::new();
        while let Some((path, stat)) = todo.pop() {
            if stat.is_dir() {
                let mut children = Vec::new();
                self.fs.readdir(tree, stat.ino, 0, true, |e| {
                    if e.name != b"." && e.name != b".." {
                        children.push((e.name.to_vec(), e.file_type, e.stat));
                    }
                    std::ops::ControlFlow::Continue(())
                })?;
                for (name, file_type, listed) in children {
                    let found = self.fs.lookup(tree, stat.ino, &name)?;
                    assert_eq!(Some(found), listed, "lookup and listing agree");
                    assert_eq!(found.file_type(), file_type);
                    todo.push((path.join(&name), found));
                }
                assert_eq!(self.fs.lookup(tree, stat.ino, b".")?.ino, stat.ino);
            }
            let entry = self.entry(tree, path.clone(), &stat, columns)?;
            inodes.insert(path, stat.ino);
            manifest.insert(entry);
        }
        manifest.link_names(|e| inodes.get(&e.path).map(|i| i.0));
        Ok(manifest)
    }
}
