//! Recovery of synced data: in bounded memory, whatever the power does meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_device::{Device, Fault, MemoryDevice};
use silt_engine::{OpenOptions, Tree, Volume};
use silt_format::Ino;

use crate::common::{file, formatted, judge};

const BS: usize = 4096;

fn options() -> OpenOptions {
    OpenOptions { now: 2000, seed: 5, cache_bytes: 20 * BS as u64, ..OpenOptions::default() }
}

type Content = BTreeMap<(Ino, u64), u8>;

/// A volume that was cut off with many synced blocks behind its newest checkpoint.
fn cut_off() -> (Arc<MemoryDevice>, Content) {
    let device = Arc::new(formatted(MemoryDevice::new(BS as u64 * 16 * 400), BS as u32, 16));
    let (mut v, _) = Volume::open(device.clone(), &options()).unwrap();
    v.take_over(2000).unwrap();
    let mut content = Content::new();
    let files: Vec<Ino> = (0..3).map(|_| file(&mut v)).collect();
    for ino in &files {
        for key in 0..200 {
            v.write_block(*ino, key, vec![1; BS].into()).unwrap();
            content.insert((*ino, key), 1);
        }
    }
    v.checkpoint(2001).unwrap();
    for round in 0..12u8 {
        let ino = files[usize::from(round) % 3];
        for key in (u64::from(round)..200).step_by(5) {
            v.write_block(ino, key, vec![10 + round; BS].into()).unwrap();
            content.insert((ino, key), 10 + round);
        }
        assert!(v.begin_data_sync(&[ino], 2002).unwrap());
        v.finish_construction(2002).unwrap();
    }
    (device, content)
}

fn compare(v: &mut Volume, content: &Content) {
    for ((ino, key), with) in content {
        let b = v.read_block(Tree::Live, *ino, *key).unwrap().expect("data");
        assert!(b.iter().all(|b| b == with), "inode {ino} block {key}: {} for {with}", b[0]);
    }
}

#[test]
fn synced_data_is_recovered_in_bounded_memory() {
    let (device, content) = cut_off();
    let before = device.fork();
    let (mut v, report) = Volume::open(device.clone(), &options()).unwrap();
    assert_eq!(report.rolled_forward, 471);
    assert!(v.waiting_blocks() <= 20, "{} blocks are held", v.waiting_blocks());
    compare(&mut v, &content);
    v.take_over(2010).unwrap();
    compare(&mut v, &content);
    v.close(2020).unwrap();
    judge(&*device);
    // Only looking holds nothing and writes nothing.
    let device = Arc::new(Fault::new(before));
    device.fail_writes(0..u64::MAX, silt_device::Times::Always);
    let (mut v, report) = Volume::open(device, &OpenOptions { read_only: true, ..options() }).unwrap();
    assert_eq!(report.rolled_forward, 471);
    assert_eq!(v.waiting_blocks(), 0);
    compare(&mut v, &content);
}

/// What was synced fits once more into what is clean, and a little: it is no reason to leave the volume read-only.
#[test]
fn what_a_recovery_takes_is_not_told_far_too_high() {
    let device = Arc::new(formatted(MemoryDevice::new(64 << 20), BS as u32, 256));
    let options = OpenOptions { cache_bytes: 64 << 20, ..options() };
    let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
    v.take_over(2000).unwrap();
    let [synced, other] = [4000, 3000].map(|blocks| {
        let ino = file(&mut v);
        (0..blocks).for_each(|key| v.write_block(ino, key, vec![1; BS].into()).unwrap());
        v.checkpoint(2001).unwrap();
        ino
    });
    for key in 0..3000 {
        v.write_block(synced, key, vec![2; BS].into()).unwrap();
    }
    assert!(v.begin_data_sync(&[synced], 2002).unwrap());
    v.finish_construction(2002).unwrap();
    let clean = v.free_blocks();
    assert!(clean < 7500, "{clean} blocks are clean");
    drop(v);
    let (mut v, report) = Volume::open(device.clone(), &options).unwrap();
    assert_eq!(report.rolled_forward, 3000);
    v.take_over(2010).unwrap();
    let content = (0..4000).map(|key| ((synced, key), if key < 3000 { 2 } else { 1 }));
    compare(&mut v, &content.chain((0..3000).map(|key| ((other, key), 1))).collect());
    v.close(2020).unwrap();
    judge(&*device);
}

/// However much is synced alone while little is clean: who mounts the volume after a power cut can write it once more.
#[test]
fn no_more_is_synced_alone_than_a_recovery_has_room_for() {
    for (cache_bytes, each, step) in [(64 << 20, 400, 1), (64 << 20, 40, 7), (80 << 10, 100, 13)] {
        let device = Arc::new(formatted(MemoryDevice::new(48 << 20), BS as u32, 64));
        let options = OpenOptions { cache_bytes, ..options() };
        let (mut v, _) = Volume::open(device.clone(), &options).unwrap();
        v.take_over(2000).unwrap();
        let mut content = Content::new();
        let synced = file(&mut v);
        for key in 0..3000 {
            v.write_block(synced, key, vec![1; BS].into()).unwrap();
            content.insert((synced, key), 1);
        }
        v.checkpoint(2001).unwrap();
        let other = file(&mut v);
        let mut key = 0;
        while v.check_space(each + 20).is_ok() {
            v.write_block(other, key, vec![1; BS].into()).unwrap();
            content.insert((other, key), 1);
            key += 1;
        }
        v.checkpoint(2002).unwrap();
        let mut rounds = 0;
        // As the mount does it: what is written has space, and where that is not all a checkpoint is made.
        'write: loop {
            for n in 0..each {
                let key = (rounds * each + n) * step % 3000;
                let with = u8::try_from(2 + rounds % 200).unwrap();
                v.write_block(synced, key, vec![with; BS].into()).unwrap();
                content.insert((synced, key), with);
            }
            match v.begin_data_sync(&[synced], 2003) {
                Ok(begun) => assert!(begun),
                Err(e) => {
                    assert!(matches!(e, silt_engine::Error::NoSpace), "{e}");
                    break 'write;
                }
            }
            v.finish_construction(2003).unwrap();
            rounds += 1;
        }
        assert!(rounds > 0, "{each} blocks");
        // What was refused waits, and a power cut takes it.
        for n in 0..each {
            let key = (rounds * each + n) * step % 3000;
            content.remove(&(synced, key));
        }
        // For the checkpoint that has to do there is room.
        let cut = Arc::new(device.fork());
        v.checkpoint(2004).unwrap();
        drop(v);
        let (mut v, report) = Volume::open(cut.clone(), &options).unwrap();
        assert!(report.rolled_forward > 0);
        v.take_over(2010).unwrap();
        compare(&mut v, &content);
        v.close(2020).unwrap();
        judge(&*cut);
    }
}

/// Writes one block of `with`, a file's as well as what it is to hold.
fn write(v: &mut Volume, content: &mut Content, ino: Ino, key: u64, with: u8) {
    v.write_block(ino, key, vec![with; BS].into()).unwrap();
    content.insert((ino, key), with);
}

/// A file whose blocks lie so far from each other, some of it synced alone as far as that is granted; then others write all that
/// they have space for. What is promised, and the volume with what waits.
fn filled_up(device: Arc<dyn Device>, options: &OpenOptions, apart: u64) -> (Volume, Content) {
    let (mut v, _) = Volume::open(device, options).unwrap();
    v.take_over(2000).unwrap();
    let mut content = Content::new();
    let [synced, other] = [(); 2].map(|()| file(&mut v));
    (0..1000).for_each(|n| write(&mut v, &mut content, synced, n * apart, 1));
    v.checkpoint(2001).unwrap();
    let mut more = 0..;
    while v.check_space(600).is_ok() {
        write(&mut v, &mut content, other, more.next().unwrap(), 1);
    }
    v.checkpoint(2002).unwrap();
    for round in 0..100 {
        let mut waits = Content::new();
        (0..20).for_each(|n| write(&mut v, &mut waits, synced, (round * 140 + n * 7) % 1000 * apart, 2));
        match v.begin_data_sync(&[synced], 2003) {
            Ok(begun) => assert!(begun),
            Err(e) => {
                assert!(round > 0 && matches!(e, silt_engine::Error::NoSpace), "{round}: {e}");
                waits.keys().for_each(|at| _ = content.remove(at));
                break;
            }
        }
        v.finish_construction(2003).unwrap();
        content.append(&mut waits);
    }
    while v.check_space(1).is_ok() {
        write(&mut v, &mut Content::new(), other, more.next().unwrap(), 3);
    }
    (v, content)
}

/// A checkpoint that is cut off has taken segments already: what was synced alone has its room all the same, also where the power
/// fails again in the recovery, which writes in these segments; and where memory holds less than what was synced.
#[test]
fn the_power_may_fail_in_a_checkpoint_behind_what_was_synced_alone() {
    for (apart, cache_bytes) in [(1, 64 << 20), (300, 64 << 20), (1, 40 << 10), (300, 40 << 10)] {
        let base = formatted(MemoryDevice::new(24 << 20), BS as u32, 32);
        let options = OpenOptions { cache_bytes, ..options() };
        for writes in (0..).step_by(3) {
            let device = Arc::new(Fault::new(base.fork()));
            let (mut v, content) = filled_up(device.clone(), &options, apart);
            device.cut_power_after(writes, 2000);
            let done = v.checkpoint(2004).and_then(|_| v.flush_logs()).is_ok();
            drop(v);
            if done {
                assert!(writes > 5, "{writes}");
                break;
            }
            let mut cut = device.inner().fork();
            for (seed, again) in [(5, writes / 2), (6, 1), (7, u64::MAX)] {
                let device = Arc::new(Fault::new(cut.fork()));
                device.cut_power_after(again, 2000);
                let recovered = Volume::open(device.clone(), &OpenOptions { seed, ..options.clone() })
                    .and_then(|(mut v, report)| v.take_over(2010).map(|()| (v, report)));
                if again < u64::MAX {
                    let e = recovered.map(|_| ()).unwrap_err();
                    assert!(
                        !matches!(e, silt_engine::Error::NoSpace),
                        "{apart} apart, cut after {writes}: {e}"
                    );
                    cut = device.inner().fork();
                    continue;
                }
                let (mut v, report) =
                    recovered.unwrap_or_else(|e| panic!("{apart} apart, cut after {writes}: {e}"));
                assert!(report.rolled_forward > 0);
                assert_eq!(v.underestimated(), None);
                compare(&mut v, &content);
                v.close(2020).unwrap();
                judge(device.inner());
            }
        }
    }
}

/// What a recovery gave back is in use for the next one, as long as no checkpoint says that it is clean.
#[test]
fn the_power_may_fail_again_before_the_first_checkpoint_behind_a_recovery() {
    let device = Arc::new(formatted(MemoryDevice::new(24 << 20), BS as u32, 32));
    let options = OpenOptions { cache_bytes: 64 << 20, ..options() };
    let (v, mut content) = filled_up(device.clone(), &options, 1);
    let synced = content.first_key_value().unwrap().0.0;
    drop(v);
    for time in 0..5 {
        let (mut v, _) =
            Volume::open(device.clone(), &OpenOptions { seed: time, ..options.clone() }).unwrap();
        v.take_over(2010).unwrap_or_else(|e| panic!("for the {time}th time: {e}"));
        compare(&mut v, &content);
        loop {
            let mut waits = Content::new();
            (0..20).for_each(|key| write(&mut v, &mut waits, synced, key * 7, 3));
            if v.begin_data_sync(&[synced], 2011).is_err() {
                waits.keys().for_each(|at| _ = content.remove(at));
                break;
            }
            v.finish_construction(2011).unwrap();
            content.append(&mut waits);
        }
    }
}

#[test]
fn the_power_may_fail_at_any_write_of_a_recovery() {
    let (device, content) = cut_off();
    for step in 0.. {
        let device = Arc::new(Fault::new(device.fork()));
        device.cut_power_after(step * 3, (step % 3) * 2000);
        let done = Volume::open(device.clone(), &options())
            .and_then(|(mut v, _)| v.take_over(2010).map(|()| v))
            .is_ok();
        device.heal();
        // The second recovery may have another limit.
        let device = Arc::new(device.inner().fork());
        let second = OpenOptions { cache_bytes: 1 << 20 >> (step % 3 * 4), seed: step, ..options() };
        let (mut v, _) = Volume::open(device.clone(), &second).unwrap();
        v.take_over(2011).unwrap();
        compare(&mut v, &content);
        v.close(2012).unwrap();
        judge(&*device);
        if done {
            assert!(step > 5, "{step}");
            return;
        }
    }
}
