//! Volumes made by mkfs.nilfs2, where it is installed, check clean and read as an empty tree.
#![allow(clippy::unwrap_used)] // tests

use std::path::Path;
use std::process::Command;

use silt_device::{Access, OpenOptions, open};
use silt_verify::{Moment, Options, Tree, check};

fn mkfs() -> Option<&'static str> {
    ["/sbin/mkfs.nilfs2", "/usr/sbin/mkfs.nilfs2"].into_iter().find(|p| Path::new(p).exists())
}

#[test]
fn volumes_of_mkfs_check_clean() {
    let Some(mkfs) = mkfs() else {
        eprintln!("mkfs.nilfs2 is not installed: nothing was checked");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    for (block_size, segment, mib) in
        [(1024, 16, 8), (1024, 2048, 256), (2048, 64, 32), (4096, 16, 16), (4096, 2048, 256)]
    {
        let path = directory.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
        let made = Command::new(mkfs)
            .args(["-q", "-b", &block_size.to_string(), "-B", &segment.to_string(), "-L", "fresh"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let device = open(&path, Access::ReadOnly, &OpenOptions::default()).unwrap();
        let report = check(&device, &Options::default());
        assert!(report.is_clean(), "-b {block_size} -B {segment}:\n{}", report.error_text());
        assert!(report.stats.clean);
        assert_eq!((report.stats.last_cno, report.stats.segments), (1, 2));
        let tree = Tree::open(&device, Moment::Latest).unwrap();
        assert_eq!(tree.block_size(), block_size);
        for file in tree.walk().unwrap() {
            assert!(file.path.is_empty() || file.path == b".nilfs", "{:?}", file.path);
        }
    }
}
