//! What the kernel keeps of files in memory, and what Silt has of them: programs see one file.

use std::fs::{self, File};
use std::io::{IoSlice, Write};

use crate::common::{Bench, Mounted, can_mount};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

/// `RWF_NOAPPEND`: the offset counts although the descriptor appends. Since Linux 6.9.
const NO_APPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

#[test]
fn the_offset_of_a_write_counts_whatever_the_descriptor() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "mnt");
    let path = m.path("f");
    fs::write(&path, "0123456789").unwrap();
    let mut file = File::options().read(true).append(true).open(&path).unwrap();
    match pwritev2(&file, &[IoSlice::new(b"ab")], 2, NO_APPEND) {
        Ok(n) => assert_eq!(n, 2),
        Err(Errno::OPNOTSUPP) => return eprintln!("skipped: this kernel appends always"),
        Err(e) => panic!("{e}"),
    }
    file.write_all(b"end").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "01ab456789end", "what the kernel has");
    drop(file);
    m.unmount();
    let (m, _) = Mounted::new(&b, &[&v], "mnt");
    assert_eq!(fs::read_to_string(m.path("f")).unwrap(), "01ab456789end", "what the volume has");
    m.unmount();
}
