//! Requests as bytes, answers as bytes.

use super::*;
use crate::abi::{GetattrIn, InHeader, SetattrIn, WriteIn, fattr};
use crate::attr::{Attr, Timestamp};
use crate::channel::Channel;
use crate::channel::testing::{pair, receive};
use crate::ops::{SetAttr, SetTime, Write};
use crate::reply::{ReplyAttr, ReplyData, ReplyEntry, ReplyWrite};
use crate::request::testing::encode;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

#[derive(Default)]
struct Recorder {
    seen: Mutex<Vec<String>>,
    set: Mutex<Option<SetAttr>>,
    kept: Mutex<Vec<ReplyAttr>>,
    panics: Mutex<Vec<&'static str>>,
}

impl Filesystem for Recorder {
    fn destroy(&self, how: Destroy) {
        self.seen.lock().push(format!("destroy {how:?}"));
    }

    fn panicked(&self, operation: &'static str) {
        self.panics.lock().push(operation);
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.seen.lock().push(format!("forget {node} {lookups}"));
    }

    fn lookup(&self, _: &Context, _: u64, name: &[u8], reply: ReplyEntry) {
        assert_ne!(name, b"panic", "asked for");
        reply.negative(Duration::ZERO);
    }

    fn getattr(&self, _: &Context, _: u64, _: Option<u64>, reply: ReplyAttr) {
        self.kept.lock().push(reply);
    }

    fn setattr(&self, _: &Context, _: u64, set: &SetAttr, reply: ReplyAttr) {
        *self.set.lock() = Some(*set);
        reply.attr(&Attr::default(), Duration::ZERO);
    }

    fn readlink(&self, _: &Context, _: u64, _: ReplyData) {}

    fn write(&self, _: &Context, _: u64, write: &Write<'_>, reply: ReplyWrite) {
        let Write { offset, data, cached, kill_suidgid, .. } = *write;
        self.seen.lock().push(format!("write {offset} {} {cached} {kill_suidgid}", data.len()));
        reply.written(u32::try_from(data.len()).unwrap());
    }
}

struct Rig {
    target: Target<Recorder>,
    channel: Arc<Channel>,
    other: OwnedFd,
}

impl Rig {
    fn new() -> Self {
        let (channel, other) = pair();
        Self { target: Target::new(Arc::default()), channel: Arc::new(channel), other }
    }

    fn send(&self, bytes: &[u8]) {
        self.target.dispatch(Way::Device(self.channel.clone()), Request::parse(bytes));
    }

    /// The answers so far: error and number of each.
    fn answers(&self) -> Vec<(i32, u64)> {
        let end = u64::MAX;
        self.channel.write(0, end, &[]).unwrap();
        let next = || Some(receive(&self.other)).map(|(error, unique, _)| (error, unique));
        std::iter::from_fn(next).take_while(|(_, unique)| *unique != end).collect()
    }
}

#[test]
fn answers_may_come_later_and_in_any_order() {
    let rig = Rig::new();
    for unique in [1, 2, 3] {
        rig.send(&encode(opcode::GETATTR, unique, 1, &[GetattrIn::default().as_bytes()], &[]));
    }
    assert_eq!(rig.answers(), []);
    let kept = std::mem::take(&mut *rig.target.fs().kept.lock());
    let thread = std::thread::spawn(move || {
        for reply in kept.into_iter().rev() {
            reply.attr(&Attr::default(), Duration::ZERO);
        }
    });
    thread.join().unwrap();
    assert_eq!(rig.answers(), [(0, 3), (0, 2), (0, 1)]);
}

#[test]
fn dropped_and_panicking_requests_are_answered() {
    let rig = Rig::new();
    rig.send(&encode(opcode::READLINK, 1, 5, &[], &[]));
    rig.send(&encode(opcode::LOOKUP, 2, 1, &[b"panic\0"], &[]));
    rig.send(&encode(opcode::LOOKUP, 3, 1, &[b"name\0"], &[]));
    assert_eq!(rig.answers(), [(-libc::EIO, 1), (-libc::EIO, 2), (0, 3)]);
    assert_eq!(*rig.target.fs().panics.lock(), ["LOOKUP"]);
}

#[test]
fn unknown_and_misshapen_requests_are_answered() {
    let rig = Rig::new();
    rig.send(&encode(60_000, 1, 1, &[b"whatever"], &[]));
    rig.send(&encode(opcode::LOOKUP, 2, 1, &[b"no end"], &[]));
    rig.send(&encode(opcode::SETATTR, 3, 1, &[&[0; 87]], &[]));
    rig.send(&encode(opcode::INIT, 4, 0, &[&[0; 64]], &[]));
    let eio = -libc::EIO;
    assert_eq!(rig.answers(), [(-libc::ENOSYS, 1), (eio, 2), (eio, 3), (eio, 4)]);
}

#[test]
fn forgets_are_not_answered() {
    let rig = Rig::new();
    rig.send(&encode(opcode::FORGET, 1, 7, &[&2u64.to_ne_bytes()], &[]));
    let batch = [&2u32.to_ne_bytes()[..], &[0; 4], &[8u64, 1, 9, 3].map(u64::to_ne_bytes).concat()].concat();
    rig.send(&encode(opcode::BATCH_FORGET, 2, 0, &[&batch], &[]));
    rig.send(&encode(opcode::FORGET, 3, 7, &[], &[]));
    assert_eq!(rig.answers(), []);
    assert_eq!(*rig.target.fs().seen.lock(), ["forget 7 2", "forget 8 1", "forget 9 3"]);
}

#[test]
fn destroy_happens_once() {
    let rig = Rig::new();
    rig.send(&encode(opcode::DESTROY, 1, 0, &[], &[]));
    rig.target.destroy(Destroy::Unasked);
    rig.send(&encode(opcode::DESTROY, 2, 0, &[], &[]));
    assert_eq!(rig.answers(), [(0, 1), (0, 2)]);
    assert_eq!(*rig.target.fs().seen.lock(), ["destroy Asked"]);
}

#[test]
fn setattr_gives_only_what_is_valid() {
    let rig = Rig::new();
    let before_1970 = (-5i64).cast_unsigned();
    let set = SetattrIn {
        valid: fattr::MTIME | fattr::ATIME | fattr::ATIME_NOW | fattr::UID | fattr::KILL_SUIDGID,
        mtime: before_1970,
        mtimensec: 999_999_999,
        uid: 12,
        gid: 13,
        size: 99,
        ctimensec: u32::MAX,
        ..SetattrIn::default()
    };
    rig.send(&encode(opcode::SETATTR, 1, 1, &[set.as_bytes()], &[]));
    let want = SetAttr {
        uid: Some(12),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(Timestamp::new(-5, 999_999_999))),
        kill_suidgid: true,
        ..SetAttr::default()
    };
    assert_eq!(*rig.target.fs().set.lock(), Some(want));
    let bad = SetattrIn { mtimensec: 1_000_000_000, ..set };
    rig.send(&encode(opcode::SETATTR, 2, 1, &[bad.as_bytes()], &[]));
    assert_eq!(rig.answers(), [(0, 1), (-libc::EIO, 2)]);
}

#[test]
fn writes_carry_their_data_and_flags() {
    let rig = Rig::new();
    let write = WriteIn { offset: 4096, size: 3, write_flags: 0b101, ..WriteIn::default() };
    rig.send(&encode(opcode::WRITE, 1, 2, &[write.as_bytes(), b"abc"], &[]));
    let lying = WriteIn { size: 4, ..write };
    rig.send(&encode(opcode::WRITE, 2, 2, &[lying.as_bytes(), b"abc"], &[]));
    assert_eq!(rig.answers(), [(0, 1), (-libc::EIO, 2)]);
    assert_eq!(*rig.target.fs().seen.lock(), ["write 4096 3 true true"]);
}

/// Every operation with bodies of every length up to 160 bytes, of several fillings: never a panic, and one
/// answer to each request that wants one.
#[test]
fn no_bytes_do_harm() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for code in 0..64 {
        let rig = Rig::new();
        let silent = matches!(code, opcode::FORGET | opcode::BATCH_FORGET | opcode::NOTIFY_REPLY);
        for length in 0..160 {
            for filling in 0..4u8 {
                let body: Vec<u8> = (0..length)
                    .map(|_| match filling {
                        0 => 0,
                        1 => 0xff,
                        2 => random().to_le_bytes()[0],
                        _ => b'a' * u8::from(random().is_multiple_of(4)),
                    })
                    .collect();
                rig.send(&encode(code, 77, 1, &[&body], &[]));
                drop(std::mem::take(&mut *rig.target.fs().kept.lock()));
                let count = rig.answers().len();
                if silent {
                    assert_eq!(count, 0, "{code} {length}");
                } else if code != opcode::INTERRUPT {
                    assert_eq!(count, 1, "{code} {length} {filling}");
                }
            }
        }
        assert_eq!(*rig.target.fs().panics.lock(), [""; 0], "{}", opcode_name(code));
    }
    // Headers that lie.
    let rig = Rig::new();
    for length in 0..200 {
        let bytes: Vec<u8> = (0..length).map(|_| random().to_le_bytes()[0]).collect();
        rig.send(&bytes);
        let mut header = InHeader::read_from_prefix(&[&bytes[..], &[0; 40]].concat()).unwrap().0;
        header.len = u32::try_from(length).unwrap();
        header.total_extlen %= 64;
        let head = &header.as_bytes()[..length.min(40)];
        rig.send(&[head, bytes.get(40..).unwrap_or_default()].concat());
    }
    assert_eq!(*rig.target.fs().panics.lock(), [""; 0]);
}
