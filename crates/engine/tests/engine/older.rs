//! The log that a super block names is damaged, and the other one leads to an older checkpoint: that is shown, and nothing is
//! written behind it.

use std::sync::Arc;

use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_engine::{Error, OpenOptions, OpenReport, Tree, Volume, read_super_block};
use silt_format::super_block::{PRIMARY_OFFSET, SIZE, SuperBlock, secondary_offset};
use silt_format::{BlockNr, Ino};

use crate::common::{file, formatted, open};

const BS: usize = 4096;

/// A volume that was not unmounted and whose super blocks lead to two checkpoints, of which the second, and one behind it, have
/// something that the first has not: what a block of a file holds at each.
struct Cut {
    device: MemoryDevice,
    ino: Ino,
    named: SuperBlock,
}

fn cut() -> Cut {
    let device = Arc::new(formatted(MemoryDevice::new(BS as u64 * 16 * 60), BS as u32, 16));
    let mut v = open(device.clone());
    let ino = file(&mut v);
    let write = |v: &mut Volume, with: u8| {
        (0..6).for_each(|key| v.write_block(ino, key, vec![with; BS].into()).unwrap());
        v.checkpoint(2010).unwrap();
    };
    for with in 1..4 {
        write(&mut v, with);
    }
    v.due_super_write(2020).unwrap().write(&*device).unwrap();
    let named = read_super_block(&*device).unwrap();
    assert_eq!(named.last_cno.get(), v.last_log().cno);
    write(&mut v, 4);
    drop(v);
    Cut { device: device.fork(), ino, named }
}

fn read_only(device: &MemoryDevice) -> (Volume, OpenReport) {
    Volume::open(Arc::new(device.fork()), &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap()
}

fn holds(v: &mut Volume, ino: Ino) -> u8 {
    v.read_block(Tree::Live, ino, 5).unwrap().unwrap()[0]
}

/// Whatever block of it is damaged.
#[test]
fn an_older_checkpoint_than_a_super_block_names_is_only_shown() {
    let Cut { device, ino, named } = cut();
    let (block, cno) = (named.last_pseg.get(), named.last_cno.get());
    let (mut v, report) = read_only(&device);
    assert_eq!((holds(&mut v, ino), report.older), (4, None));
    let mut head = vec![0; BS];
    device.read_at(block * BS as u64, &mut head).unwrap();
    let log = silt_format::summary::Header::parse(v.geometry(), &head).unwrap();
    for at in block..block + u64::from(log.nblocks.get()) {
        let broken = Arc::new(Fault::new(device.fork()));
        broken.write_at(at * BS as u64 + 9, &[&[0xE5; 9]]).unwrap();
        broken.fail_writes(0..u64::MAX, Times::Always);
        let refused = Volume::open(broken.clone(), &OpenOptions::default()).map(|_| ()).unwrap_err();
        let Error::Older { block: told, named, found } = refused else { panic!("{at}: {refused}") };
        assert_eq!((told, named, found), (block, cno, cno - 1), "{at}");
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let (mut v, report) = Volume::open(broken, &options).unwrap();
        assert_eq!((v.last_log().cno, holds(&mut v, ino)), (cno - 1, 2), "{at}");
        assert_eq!(report.older, Some(refused.to_string()), "{at}");
        assert!(refused.to_string().contains("silt repair"), "{refused}");
    }
}

/// The other leads on to what that one named, and to all behind it: nothing is lost.
#[test]
fn a_super_block_that_is_lost_or_leads_nowhere_is_no_reason_not_to_write() {
    let Cut { device, ino, named } = cut();
    for at in [PRIMARY_OFFSET, secondary_offset(device.len())] {
        let mut bytes = [0; SIZE];
        device.read_at(at, &mut bytes).unwrap();
        let mut block = SuperBlock::parse(&bytes).unwrap();
        let is_named = block.last_cno == named.last_cno;
        block.last_pseg = (block.last_pseg.get() + 1).into();
        let torn = [&bytes[..512], &[0xE5; SIZE - 512]].concat();
        for (wrong, leads_nowhere) in [(&torn[..], false), (&block.to_disk(), true)] {
            let broken = Arc::new(device.fork());
            broken.write_at(at, &[wrong]).unwrap();
            let (mut v, report) = Volume::open(broken.clone(), &OpenOptions::default()).unwrap();
            assert_eq!((holds(&mut v, ino), report.older), (4, None), "{at}: {is_named}, {leads_nowhere}");
            v.take_over(2030).unwrap();
            v.write_block(ino, 0, vec![9; BS].into()).unwrap();
            v.close(2040).unwrap();
            assert_eq!(holds(&mut read_only(&broken).0, ino), 4);
        }
    }
}

/// What lies behind the log that a super block names may be torn by a power cut: that is not what it names.
#[test]
fn a_torn_log_behind_what_a_super_block_names_is_no_reason_not_to_write() {
    let Cut { device, ino, named } = cut();
    let v = read_only(&device).0;
    let last = v.last_log();
    assert_eq!(last.cno, named.last_cno.get() + 1);
    let at = v.geometry().byte_of(BlockNr(last.pseg + 1));
    device.write_at(at, &[&[0xE5; BS]]).unwrap();
    let (mut v, report) = Volume::open(Arc::new(device.fork()), &OpenOptions::default()).unwrap();
    assert_eq!((v.last_log().cno, holds(&mut v, ino), report.older), (named.last_cno.get(), 3, None));
    v.take_over(2030).unwrap();
}
