//! Golden volumes, damaged: what comes back, compared with what the kernel wrote.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use md5::{Digest, Md5};
use proptest::prelude::*;
use rustix::fs::SeekFrom;
use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_format::BlockNr;
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::super_block::{PRIMARY_OFFSET, SIZE, secondary_offset};
use silt_verify::golden::{self, Content, Line, NAMES};
use silt_verify::rescue::{Grade, Note, Rescue, Role, Tally};
use silt_verify::surgeon::{Sums, Surgeon};
use silt_verify::{Moment, Tree, Unwatched};

/// Files larger than this are not read through when they are compared.
const LARGE: u64 = 256 << 20;

fn md5_of(path: &Path) -> String {
    Md5::digest(std::fs::read(path).unwrap()).iter().map(|b| format!("{b:02x}")).collect()
}

/// Digest of the blocks of a sparse file that are not zero, and of where they lie.
fn sparse_md5(path: &Path) -> Vec<u8> {
    let file = std::fs::File::open(path).unwrap();
    let (mut at, mut digest) = (0, Md5::new());
    let mut block = [0; 4096];
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        at = start;
        while at < end {
            let n = file.read_at(&mut block, at).unwrap();
            if block[..n].iter().any(|b| *b != 0) {
                digest.update(at.to_le_bytes());
                digest.update(&block[..n]);
            }
            at += n as u64;
        }
    }
    digest.finalize().to_vec()
}

/// Everything below a directory by its path as manifests write it.
fn listing(dir: &Path) -> BTreeMap<String, PathBuf> {
    let mut out = BTreeMap::new();
    let mut todo = vec![(".".to_owned(), dir.to_owned())];
    while let Some((name, path)) = todo.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            for e in std::fs::read_dir(&path).unwrap() {
                let e = e.unwrap();
                let own = String::from_utf8_lossy(e.file_name().as_bytes()).into_owned();
                todo.push((format!("{name}/{own}"), e.path()));
            }
        }
        out.insert(name, path);
    }
    out
}

/// Whether content is what a manifest says.
fn same_content(path: &Path, line: &Line) -> bool {
    let Ok(meta) = path.symlink_metadata() else { return false };
    match &line.content {
        Content::Md5(md5) => meta.is_file() && meta.len() < LARGE && md5_of(path) == *md5,
        Content::Link(target) => {
            std::fs::read_link(path).is_ok_and(|t| t.as_os_str().as_bytes() == target.as_bytes())
        }
        Content::Device(major, minor) => {
            let special = meta.file_type().is_char_device() || meta.file_type().is_block_device();
            special && meta.rdev() == rustix::fs::makedev(*major, *minor)
        }
        // Larger than the file system below may take.
        Content::Huge => meta.is_file(),
        Content::Nothing => meta.mode() & 0o170_000 == line.mode & 0o170_000,
    }
}

/// Whether a file is another one but for zeros at the end of that.
fn same_but_zeros_at_the_end(path: &Path, right: &Path) -> bool {
    let (got, right) = (std::fs::read(path).unwrap(), std::fs::read(right).unwrap());
    right.strip_prefix(got.as_slice()).is_some_and(|rest| rest.iter().all(|b| *b == 0))
}

fn same_attributes(path: &Path, line: &Line, with_time: bool) -> bool {
    let Ok(m) = path.symlink_metadata() else { return false };
    let is_dir = m.is_dir();
    (m.mode(), m.uid(), m.gid()) == (line.mode, line.uid, line.gid)
        && (is_dir
            || line.content == Content::Huge
            || (m.len() == line.size && m.nlink() == u64::from(line.links)))
        && (!with_time || m.mtime() == line.mtime)
}

/// Owners and device nodes are root's.
fn is_root() -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        eprintln!("skipped: only root can keep owners and device nodes");
    }
    is
}

struct Copy {
    dir: tempfile::TempDir,
    cno: u64,
    tally: Tally,
}

impl Copy {
    fn of(device: &dyn Device, moment: Option<u64>) -> Self {
        let rescue = Rescue::open(device, &Unwatched).unwrap();
        let cno =
            moment.unwrap_or_else(|| rescue.newest_readable(&Unwatched).expect("something is readable"));
        let dir = tempfile::tempdir().unwrap();
        let mut tally = rescue.copy_out(cno, dir.path(), &Unwatched).unwrap();
        let below = |n: &Note| *n == Note::NotMade { why: std::io::ErrorKind::FileTooLarge };
        let before = tally.problems.len();
        tally.problems.iter_mut().for_each(|p| p.notes.retain(|n| !below(n)));
        tally.problems.retain(|p| !p.notes.is_empty() || !p.missing.is_empty());
        tally.damaged -= (before - tally.problems.len()) as u64;
        Copy { dir, cno, tally }
    }

    /// Compares with a section in full.
    #[track_caller]
    fn is(&self, name: &str, files: &BTreeMap<String, Line>) {
        let got = listing(self.dir.path());
        let names = |m: &mut dyn Iterator<Item = &String>| m.cloned().collect::<BTreeSet<_>>();
        assert_eq!(names(&mut got.keys()), names(&mut files.keys()), "{name}");
        for (path, line) in files {
            assert!(same_content(&got[path], line), "{name}: {path}");
            assert!(same_attributes(&got[path], line, !name.starts_with("dsync")), "{name}: {path}");
        }
    }
}

fn section_of(cno: u64, latest: u64, section: &str) -> Option<u64> {
    match section.strip_prefix("cp=") {
        Some(n) => n.parse().ok(),
        None if section == "cur" => Some(latest),
        None => Some(2),
    }
    .filter(|n| *n <= cno.max(latest))
}

#[test]
fn sound_volumes_come_back_in_full_at_every_moment() {
    if !is_root() {
        return;
    }
    for name in NAMES {
        let s = Surgeon::golden(name);
        for (section, files) in golden::manifest(name) {
            let cno = section_of(0, s.cno(), &section).unwrap();
            let copy = Copy::of(&s.device, Some(cno));
            assert!(copy.tally.problems.is_empty(), "{name} {section}: {:?}", copy.tally.problems[0]);
            copy.is(&format!("{name} {section}"), &files);
        }
    }
}

fn zero_super_blocks(device: &MemoryDevice, which: (bool, bool)) {
    for (at, wanted) in [(PRIMARY_OFFSET, which.0), (secondary_offset(device.len()), which.1)] {
        if wanted {
            device.write_at(at, &[&[0; SIZE]]).unwrap();
        }
    }
}

#[test]
fn nothing_is_lost_without_super_blocks() {
    if !is_root() {
        return;
    }
    for name in NAMES {
        for which in [(true, true), (true, false), (false, true)] {
            if which != (true, true) && name != "basic-4k" {
                continue;
            }
            let s = Surgeon::golden(name);
            let latest = s.cno();
            zero_super_blocks(&s.device, which);
            let copy = Copy::of(&s.device, None);
            assert_eq!((copy.cno, copy.tally.problems.len()), (latest, 0), "{name}");
            copy.is(name, &golden::manifest(name)["cur"]);
        }
    }
}

#[test]
fn a_lost_super_root_costs_what_changed_since_the_one_before() {
    for name in ["basic-4k", "basic-1k", "gc-4k"] {
        let mut s = Surgeon::golden(name);
        let (cno, at) = (s.cno(), s.latest().end() - 1);
        s.patch_with(at, Sums::None, |b| noise(b, 7));
        let rescue = Rescue::open(&s.device, &Unwatched).unwrap();
        let answer = rescue.rate(false, &Unwatched);
        assert_eq!((answer.newest, answer.newest_whole), (Some(cno - 1), Some(cno - 1)), "{name}");
    }
}

#[test]
fn a_torn_newest_log_is_told_from_the_one_before() {
    let mut s = Surgeon::golden("basic-4k");
    let (cno, log) = (s.cno(), s.latest());
    // Its first blocks did not land: the super root did.
    let first = log.pos.0 + u64::from(log.header.summary_blocks(&s.g()));
    s.patch_with(first, Sums::None, |b| b.fill(0));
    let rescue = Rescue::open(&s.device, &Unwatched).unwrap();
    let answer = rescue.rate(false, &Unwatched);
    assert_eq!(answer.newest, Some(cno));
    assert_eq!(answer.newest_whole, Some(cno - 1));
    assert!(answer.moments[0].grade() < Some(Grade::Whole));
}

fn noise(block: &mut [u8], seed: u64) {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for part in block.chunks_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        part.copy_from_slice(&x.to_le_bytes()[..part.len()]);
    }
}

/// What a block of the latest state is to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    SuperRoot,
    /// Of the newest log.
    Summary,
    /// DAT, cpfile, sufile, ifile.
    Shared(u64),
    Directory(u64),
    /// A node of the map of a file.
    Node(u64),
}

/// All metadata blocks of the latest state.
fn metadata(s: &Surgeon) -> BTreeMap<u64, Owner> {
    let mut out = BTreeMap::new();
    let rescue = Rescue::open(&s.device, &Unwatched).unwrap();
    let (dat, latest) = (s.dat(), s.latest());
    out.insert(latest.end() - 1, Owner::SuperRoot);
    for i in 0..latest.header.summary_blocks(&s.g()) {
        out.insert(latest.pos.0 + u64::from(i), Owner::Summary);
    }
    out.extend(dat.blocks.values().chain(dat.nodes.keys()).map(|b| (*b, Owner::Shared(3))));
    for ino in 4..=6 {
        out.extend(s.file(ino).values().map(|b| (*b, Owner::Shared(ino))));
    }
    let tree = Tree::open(&s.device, Moment::Latest).unwrap();
    for w in tree.walk().unwrap() {
        if w.attributes.is_directory() {
            out.extend(s.file(w.attributes.ino).values().map(|b| (*b, Owner::Directory(w.attributes.ino))));
        }
    }
    for ino in rescue.records().owners().filter(|ino| *ino > 3) {
        for c in rescue.records().nodes_of(ino, u64::MAX) {
            if !dat.blocks.contains_key(&dat.layout.entry(c.vblock).block) {
                continue;
            }
            let e = s.dat_entry(c.vblock);
            if c.role == (Role::Node { first: None }) && e.blocknr.get() == c.block && e.end.get() == u64::MAX
            {
                out.insert(c.block, if ino < 11 { Owner::Shared(ino) } else { Owner::Node(ino) });
            }
        }
    }
    out
}

/// Every metadata block in turn is noise, one at a time (every n-th by default, all with `SILT_RESCUE_ALL`).
fn every_block_in_turn(name: &'static str, step: usize) {
    if !is_root() {
        return;
    }
    let all = std::env::var_os("SILT_RESCUE_ALL").is_some();
    let pristine = Surgeon::golden(name);
    let (blocks, latest) = (metadata(&pristine), pristine.cno());
    let files = &golden::manifest(name)["cur"];
    let tree = Tree::open(&pristine.device, Moment::Latest).unwrap();
    let inos: BTreeMap<String, u64> = tree
        .walk()
        .unwrap()
        .into_iter()
        .map(|w| {
            let path = String::from_utf8_lossy(&w.path).into_owned();
            (if path.is_empty() { ".".to_owned() } else { format!("./{path}") }, w.attributes.ino)
        })
        .collect();
    let whole = Copy::of(&pristine.device, None);
    whole.is(name, files);
    let large: BTreeMap<String, Vec<u8>> = files
        .iter()
        .filter(|(_, line)| line.size > 64 << 20 && matches!(line.content, Content::Md5(_)))
        .map(|(path, _)| (path.clone(), sparse_md5(&whole.dir.path().join(path))))
        .collect();
    let mut tried = BTreeMap::new();
    for (i, (block, owner)) in blocks.iter().enumerate() {
        // The few of a kind are tried in any case.
        let rare = !matches!(owner, Owner::Shared(3 | 6) | Owner::Directory(_) | Owner::Node(_));
        if !all && !rare && i % step != 0 {
            continue;
        }
        let mut s = Surgeon::golden(name);
        s.patch_with(*block, Sums::None, |b| noise(b, *block));
        let copy = Copy::of(&s.device, None);
        let label = format!("{name}: block {block} of {owner:?}");
        if *owner == Owner::SuperRoot {
            assert_eq!((copy.cno, copy.tally.damaged), (latest - 1, 0), "{label}");
            continue;
        }
        assert_eq!(copy.cno, latest, "{label}");
        let got = listing(copy.dir.path());
        let mut older = 0;
        for (path, line) in files {
            let ino = inos[path];
            let own = matches!(owner, Owner::Node(o) | Owner::Directory(o) if *o == ino);
            let nameless = format!("./lost+found/#{ino}");
            let at = match (got.get(path), owner) {
                (Some(at), _) => at,
                // A name that was in the block, or below a directory that had one there.
                (None, Owner::Directory(_)) => {
                    let Some(top) = got.get(&nameless) else {
                        let below = got.keys().any(|k| k.ends_with(path.rsplit('/').next().unwrap()));
                        assert!(below, "{label}: {path} is gone");
                        continue;
                    };
                    top
                }
                // The number of a device is in its inode alone.
                (None, Owner::Shared(6)) if matches!(line.content, Content::Device(..)) => continue,
                (None, _) => panic!("{label}: {path} is gone: {:?}", copy.tally.problems),
            };
            let problem = copy.tally.problems.iter().find(|p| p.ino == ino);
            let guessed = problem.is_some_and(|p| p.notes.contains(&Note::SizeGuessed));
            assert!(!guessed || *owner == Owner::Shared(6), "{label}: {path}: {problem:?}");
            let same = match &line.content {
                Content::Md5(_) if line.size > 64 << 20 => sparse_md5(at) == large[path],
                // What was cut off since the older inode is gone, and the size is in the lost one alone.
                _ if guessed => same_but_zeros_at_the_end(at, &whole.dir.path().join(path)),
                _ => same_content(at, line),
            };
            if !same {
                assert!(own, "{label}: {path} has other content: {:?}", copy.tally.problems);
            }
            let told = problem.is_some_and(|p| {
                p.notes.iter().any(|n| matches!(n, Note::OlderAttributes { .. } | Note::AttributesLost))
            });
            older += usize::from(told);
            if !told && !matches!(owner, Owner::Directory(_)) {
                assert!(
                    same_attributes(at, line, !name.starts_with("dsync")),
                    "{label}: {path}: {problem:?}"
                );
            }
        }
        if *owner != Owner::Shared(6) {
            assert_eq!(older, 0, "{label}");
        }
        let entry = tried.entry(*owner).or_insert(0);
        *entry += 1;
    }
    let count =
        |f: &dyn Fn(&Owner) -> bool| tried.iter().filter(|(o, _)| f(o)).map(|(_, n)| n).sum::<usize>();
    println!(
        "{name}: {} of {} blocks: DAT {}, cpfile {}, sufile {}, ifile {}, directories {}, nodes {}",
        tried.values().sum::<usize>(),
        blocks.len(),
        count(&|o| *o == Owner::Shared(3)),
        count(&|o| *o == Owner::Shared(4)),
        count(&|o| *o == Owner::Shared(5)),
        count(&|o| *o == Owner::Shared(6)),
        count(&|o| matches!(o, Owner::Directory(_))),
        count(&|o| matches!(o, Owner::Node(_))),
    );
    assert!(tried.len() > 3);
}

#[test]
fn every_metadata_block_of_basic_4k_in_turn() {
    every_block_in_turn("basic-4k", 11);
}

#[test]
fn every_metadata_block_of_btree_1k_in_turn() {
    every_block_in_turn("btree-1k", 11);
}

#[test]
fn every_metadata_block_of_gc_4k_in_turn() {
    every_block_in_turn("gc-4k", 5);
}

#[test]
fn every_metadata_block_of_basic_1k_in_turn() {
    every_block_in_turn("basic-1k", 37);
}

/// A file was cut shorter, and the block of inodes that says so is noise: its log with blocks of the DAT in it does not
/// verify either. What was cut off stays away; the size, which nothing else tells, ends with the last byte that is not
/// zero, and both are said.
#[test]
fn what_was_cut_off_does_not_come_back_with_an_older_inode() {
    if !is_root() {
        return;
    }
    for (name, file, size, older) in [("basic-1k", "six", 100, 2), ("btree-1k", "scatter", 0, 7)] {
        let mut s = Surgeon::golden(name);
        let (g, ino) = (s.g(), s.ino(file));
        let right = Copy::of(&s.device, None);
        let place = Layout::ifile(&g).entry(ino);
        let block = s.file(6)[&place.block];
        s.patch_with(block, Sums::None, |b| noise(b, block));
        let copy = Copy::of(&s.device, None);
        let got = copy.dir.path().join(file);
        assert_eq!(got.metadata().unwrap().len(), size, "{name}");
        assert!(same_but_zeros_at_the_end(&got, &right.dir.path().join(file)), "{name}");
        let problem = copy.tally.problems.iter().find(|p| p.ino == ino).unwrap();
        let told = [Note::OlderAttributes { cno: older }, Note::SizeGuessed];
        assert!(problem.missing.is_empty() && problem.notes.ends_with(&told), "{name}: {problem:?}");
    }
}

/// A sector of a file's content cannot be read: the file comes back with a hole of its size, and whole versions of it
/// are looked for in earlier moments.
#[test]
fn an_unreadable_sector_costs_its_bytes() {
    let s = Surgeon::golden("basic-4k");
    let (g, ino) = (s.g(), s.ino("big"));
    let (offset, block) = s.file(ino).into_iter().nth(40).unwrap();
    let pristine = Copy::of(&s.device, None);
    let expected = std::fs::read(pristine.dir.path().join("big")).unwrap();
    let device = Fault::new(s.device);
    let byte = g.byte_of(BlockNr(block));
    device.fail_reads(byte + 1024..byte + 1536, Times::Always);
    let copy = Copy::of(&device, None);
    let problem = copy.tally.problems.iter().find(|p| p.ino == ino).unwrap();
    let lost = offset * 4096 + 1024..offset * 4096 + 1536;
    assert_eq!(problem.missing.as_slice(), std::slice::from_ref(&lost));
    let got = std::fs::read(copy.dir.path().join("big")).unwrap();
    assert_eq!(got.len(), expected.len());
    let lost = lost.start as usize..lost.end as usize;
    assert!(got[lost.clone()].iter().all(|b| *b == 0) && got[lost.end..] == expected[lost.end..]);
    assert!(got[..lost.start] == expected[..lost.start]);
    // No older version may be called whole that shares the block.
    for note in &problem.notes {
        if let Note::WholeVersionBeside { cno } = note {
            let older = std::fs::read(copy.dir.path().join(format!("big.checkpoint-{cno}"))).unwrap();
            let right = Copy::of(device.inner(), Some(*cno));
            assert!(older == std::fs::read(right.dir.path().join("big")).unwrap());
        }
    }
    // Others of the same log only do not verify.
    assert!(
        copy.tally
            .problems
            .iter()
            .filter(|p| p.ino != ino)
            .all(silt_verify::rescue::Problem::only_unverified)
    );
}

/// Segments that lie where others should verify all the same. What was exchanged comes back; what was overwritten is told.
#[test]
fn segments_that_lie_where_others_should_are_told() {
    if !is_root() {
        return;
    }
    let mut told = 0;
    for (name, pairs) in
        [("basic-4k", [(1, 2), (2, 3), (3, 5), (4, 1)]), ("gc-4k", [(1, 2), (2, 4), (3, 1), (5, 3)])]
    {
        let s = Surgeon::golden(name);
        let g = s.g();
        let sound = golden::manifest(name);
        let files = &sound["cur"];
        let segment = |n: u64| {
            let at = g.byte_of(g.segment_start(silt_format::SegNr(n)));
            let mut bytes = vec![0; g.bs() * g.blocks_per_segment as usize];
            s.device.read_at(at, &mut bytes).unwrap();
            (at, bytes)
        };
        for ((a, b), both) in pairs.into_iter().flat_map(|pair| [(pair, true), (pair, false)]) {
            let ((to, old), (from, new)) = (segment(a), segment(b));
            let device = s.device.fork();
            device.write_at(to, &[&new]).unwrap();
            if both {
                device.write_at(from, &[&old]).unwrap();
            }
            let copy = Copy::of(&device, None);
            assert_eq!(copy.cno, s.cno(), "{name} {a} {b}");
            let got = listing(copy.dir.path());
            let problems: BTreeSet<u64> = copy.tally.problems.iter().map(|p| p.ino).collect();
            told += problems.len();
            let tree = Tree::open(&s.device, Moment::Latest).unwrap();
            for (path, line) in files {
                let same = got.get(path).is_some_and(|got| same_content(got, line));
                let inner = path.strip_prefix("./").unwrap_or("");
                let known = same || tree.lookup(inner.as_bytes()).is_ok_and(|ino| problems.contains(&ino));
                assert!(
                    known,
                    "{name}, {b} in the place of {a}, exchanged: {both}: {path} is wrong in silence"
                );
            }
        }
    }
    assert!(told > 0);
}

#[test]
fn a_file_whose_newest_bytes_are_lost_has_an_older_version_beside_it() {
    let s = Surgeon::golden("basic-4k");
    let g = s.g();
    let rescue = Rescue::open(&s.device, &Unwatched).unwrap();
    let tree = Tree::open(&s.device, Moment::Latest).unwrap();
    let latest = s.cno();
    // A file with a block that was written again since a checkpoint that still exists.
    let moments: BTreeSet<u64> =
        rescue.moments().iter().filter(|m| !m.minor && m.cno < latest).map(|m| m.cno).collect();
    let found = tree.walk().unwrap().into_iter().filter(|w| w.attributes.is_regular()).find_map(|w| {
        let map = s.file(w.attributes.ino);
        let (offset, block) = map.into_iter().next()?;
        let mut versions = rescue.records().blocks_of(w.attributes.ino, offset..offset + 1, latest);
        let old = versions.find(|c| c.block != block && moments.contains(&c.cno))?;
        Some((w, offset, block, old.cno))
    });
    let (w, offset, block, _) = found.expect("a file that was written again");
    drop(rescue);
    let device = Fault::new(s.device.fork());
    let byte = g.byte_of(BlockNr(block));
    device.fail_reads(byte..byte + 4096, Times::Always);
    let copy = Copy::of(&device, None);
    let problem = copy.tally.problems.iter().find(|p| p.ino == w.attributes.ino).unwrap();
    // It may have several names.
    let path = String::from_utf8(problem.path.clone()).unwrap();
    let size = w.attributes.size;
    let (from, to) = (offset * 4096, ((offset + 1) * 4096).min(size));
    assert_eq!(problem.missing.iter().map(|r| (r.start, r.end)).collect::<Vec<_>>(), [(from, to)]);
    let beside = problem.notes.iter().find_map(|n| match n {
        Note::WholeVersionBeside { cno } => Some(*cno),
        _ => None,
    });
    let cno = beside.expect("a whole version");
    let right =
        Tree::open(&s.device, Moment::Checkpoint(cno)).unwrap().read(w.attributes.ino, LARGE).unwrap();
    let older = std::fs::read(copy.dir.path().join(format!("{path}.checkpoint-{cno}"))).unwrap();
    assert!(older == right, "{path} {cno}");
}

/// The block of inodes is lost, and in the version before it another file had the number, of another type than the directory says:
/// its attributes and its content are nobody's.
#[test]
fn an_older_inode_of_another_type_is_not_believed() {
    for (name, file) in [("basic-4k", "big"), ("basic-1k", "six")] {
        let mut s = Surgeon::golden(name);
        let (g, ino) = (s.g(), s.ino(file));
        let (block, byte) = s.inode_place(ino);
        let offset = Layout::ifile(&g).entry(ino).block;
        let rescue = Rescue::open(&s.device, &Unwatched).unwrap();
        let versions = rescue.records().blocks_of(6, offset..offset + 1, s.cno());
        let older = versions
            .filter(|c| c.block != block)
            .max_by_key(|c| (c.cno, c.order))
            .expect("an older version")
            .block;
        drop(rescue);
        let right = Tree::open(&s.device, Moment::Latest).unwrap().read(ino, LARGE).unwrap();
        s.patch_with(older, Sums::All, |b| {
            let mut raw = RawInode::read(&b[byte..]).unwrap();
            raw.mode = 0o010_640.into();
            raw.store(&mut b[byte..]);
        });
        s.patch_with(block, Sums::None, |b| noise(b, block));
        let copy = Copy::of(&s.device, None);
        let got = copy.dir.path().join(file);
        assert!(got.metadata().is_ok_and(|m| m.is_file()), "{name}: {:?}", copy.tally.problems);
        let problem = copy.tally.problems.iter().find(|p| p.ino == ino).unwrap();
        assert!(problem.notes.contains(&Note::AttributesLost), "{name}: {problem:?}");
        let got = std::fs::read(&got).unwrap();
        let rest = right.strip_prefix(got.as_slice());
        assert!(rest.is_some_and(|rest| rest.iter().all(|b| *b == 0)), "{name}: it has other content");
    }
}

/// What a symlink leads to is lost: it is told, and all else is copied.
#[test]
fn a_symlink_without_a_target_is_told_and_keeps_nothing_else_out() {
    let s = Surgeon::golden("basic-4k");
    let g = s.g();
    let (ino, all) = (s.ino("sym"), Copy::of(&s.device, None));
    let mut expected = listing(all.dir.path()).into_keys().collect::<BTreeSet<_>>();
    for block in [s.inode_place(ino).0, s.file(ino)[&0]] {
        s.device.write_at(g.byte_of(BlockNr(block)), &[&vec![0; g.bs()]]).unwrap();
    }
    let copy = Copy::of(&s.device, None);
    let got = listing(copy.dir.path()).into_keys().collect::<BTreeSet<_>>();
    assert!(expected.remove("./sym"));
    assert_eq!(got, expected);
    // What tells without copying says the same.
    let judged = Rescue::open(&s.device, &Unwatched).unwrap().judge(copy.cno, &Unwatched).unwrap();
    for (how, tally) in [("copied", &copy.tally), ("judged", &judged)] {
        let problem = tally.problems.iter().find(|p| p.ino == ino).unwrap();
        assert!(problem.notes.contains(&Note::Lost { why: "its target is lost" }), "{how}: {problem:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 20, ..ProptestConfig::default() })]

    /// Metadata blocks are changed and all checksums made right again, or not: nothing panics, and all of it ends.
    #[test]
    fn crafted_volumes_end_in_an_answer(
        which in 0usize..3,
        sums in prop::bool::weighted(0.7),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0usize..512, 0usize..7, any::<u64>()), 1..6),
        without_super_blocks in prop::bool::weighted(0.2),
    ) {
        let mut s = Surgeon::golden(["dsync-1k", "dsync-4k", "gc-4k"][which]);
        let blocks: Vec<u64> = metadata(&s).into_keys().collect();
        for (index, word, kind, value) in changes {
            let block = *index.get(&blocks);
            let mut bytes = s.read(block);
            let at = (word * 8) % bytes.len();
            let value = match kind {
                0 => 0,
                1 => u64::MAX,
                2 => 1,
                3 => *index.get(&blocks),
                4 => value & 0xffff,
                5 => i64::MAX.cast_unsigned(),
                _ => value,
            };
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            s.patch_if_possible(block, if sums { Sums::All } else { Sums::None }, &bytes);
        }
        if without_super_blocks {
            zero_super_blocks(&s.device, (true, true));
        }
        if let Ok(rescue) = Rescue::open(&s.device, &Unwatched) {
            let answer = rescue.rate(false, &Unwatched);
            if let Some(cno) = answer.newest {
                let dir = tempfile::tempdir().unwrap();
                let tally = rescue.copy_out(cno, dir.path(), &Unwatched).unwrap();
                prop_assert!(tally.directories + tally.files > 0);
            }
        }
    }
}
