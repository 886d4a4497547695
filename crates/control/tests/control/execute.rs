//! Requests over a volume in memory: what they do, and who may.

use std::sync::atomic::Ordering;

use silt_control::scrub::ScrubAction;
use silt_control::{
    CheckpointQuery, Host, Kind, Moment, MomentMount, Removed, Request, Response, SegmentQuery, Tune,
    UnmountWhat,
};
use silt_format::Cno;

use crate::common::{MemoryHost, OTHER, OWNER, ROOT, SECRET};

fn numbers(host: &MemoryHost, query: CheckpointQuery) -> Vec<u64> {
    host.list(query).into_iter().map(|c| c.number).collect()
}

fn all() -> CheckpointQuery {
    CheckpointQuery { minor: true, ..CheckpointQuery::default() }
}

fn removed(parts: &[Response]) -> &Removed {
    match parts {
        [Response::Removed(r)] => r,
        other => panic!("{other:?}"),
    }
}

#[test]
fn long_lists_come_in_batches_in_either_direction() {
    let host = MemoryHost::new();
    host.make_checkpoints(3300);
    let up: Vec<u64> = (1..=3300).collect();
    let down: Vec<u64> = (1..=3300).rev().collect();
    assert_eq!(numbers(&host, all()), up);
    assert_eq!(numbers(&host, CheckpointQuery { reverse: true, ..all() }), down);
    let from = |reverse, from, count| {
        numbers(&host, CheckpointQuery { reverse, from: Some(from), count: Some(count), ..all() })
    };
    assert_eq!(from(false, 990, 30), up[989..1019]);
    assert_eq!(from(true, 2010, 1500), down[1290..2790]);
    assert_eq!(from(true, 99_999, 2), [3300, 3299]);
    assert_eq!(from(false, 99_999, 2), [0u64; 0]);
    assert_eq!(from(false, u64::MAX, 2), [0u64; 0]);
    assert_eq!(from(true, 0, 2), [0u64; 0]);
    // All were made by changes of modes: none but the first holds a change of a file. The newest is shown all the same.
    assert_eq!(numbers(&host, CheckpointQuery::default()), [1, 3300]);
}

/// A snapshot is made of what there was, or of something newer, whatever becomes of the checkpoint meanwhile.
#[test]
fn a_checkpoint_that_is_given_up_at_once_fails_no_snapshot() {
    let host = MemoryHost::new();
    host.make_checkpoints(10);
    host.gives_up.store(true, Ordering::Relaxed);
    let made = host.ask(ROOT, Request::MakeCheckpoint { snapshot: true }).unwrap();
    let [Response::Checkpoint(number)] = made[..] else { panic!("{made:?}") };
    let all = host.list(all());
    assert!(!all.iter().any(|c| c.number == number - 1), "it was given up");
    assert!(all.iter().any(|c| c.number == number && c.snapshot), "{all:?}");
}

#[test]
fn long_gaps_are_walked_over() {
    let host = MemoryHost::new();
    host.make_checkpoints(3000);
    let request = Request::RemoveCheckpoints { start: 5, end: 2990 };
    assert_eq!(removed(&host.ask(ROOT, request).unwrap()).removed, 2986);
    let left: Vec<u64> = [1, 2, 3, 4].into_iter().chain(2991..=3001).collect();
    assert_eq!(numbers(&host, all()), left);
    let mut back = left;
    back.reverse();
    assert_eq!(numbers(&host, CheckpointQuery { reverse: true, ..all() }), back);
}

#[test]
fn many_behind_a_gap_come_in_batches_too() {
    let host = MemoryHost::new();
    host.make_checkpoints(5200);
    host.ask(ROOT, Request::RemoveCheckpoints { start: 2500, end: 5199 }).unwrap();
    let left: Vec<u64> = (1..2500).chain([5200, 5201]).rev().collect();
    assert_eq!(numbers(&host, CheckpointQuery { reverse: true, ..all() }), left);
}

#[test]
fn a_moment_is_found_by_number_and_time() {
    let host = MemoryHost::new();
    host.make_checkpoints(2500);
    let find = |at, snapshot_only| match host.ask(ROOT, Request::FindMoment { at, snapshot_only }) {
        Ok(parts) => match parts[..] {
            [Response::Checkpoint(n)] => Ok(n),
            _ => panic!("{parts:?}"),
        },
        Err(e) => Err(e.kind),
    };
    assert_eq!(find(Moment::Checkpoint(77), false), Ok(77));
    assert_eq!(find(Moment::Checkpoint(2501), false), Err(Kind::NotFound));
    assert_eq!(find(Moment::Time(1_000 + 77), false), Ok(77));
    assert_eq!(find(Moment::Time(u64::MAX), false), Ok(2500));
    assert_eq!(find(Moment::Time(999), false), Err(Kind::NotFound));
    assert_eq!(find(Moment::Checkpoint(77), true), Err(Kind::Invalid), "no snapshot");
    host.ask(ROOT, Request::ChangeMode { checkpoints: vec![77], snapshot: true }).unwrap();
    assert_eq!(find(Moment::Checkpoint(77), true), Ok(77));
}

/// While the clock was wrong, years ahead and then at the beginning of time, and after that.
#[test]
fn moments_with_times_that_are_wrong_hide_none() {
    let host = MemoryHost::new();
    host.make_checkpoints(60);
    let wrong = |from: u64, last: u64| {
        let mut v = host.volume.lock().unwrap();
        for n in v.last_log().cno + 1..=last {
            // Any change will do.
            if n % 2 == 0 {
                v.make_snapshot(Cno(1)).unwrap()
            } else {
                v.unmake_snapshot(Cno(1)).unwrap()
            }
            v.checkpoint(from + n).unwrap();
            while v.due_super_write(from + n).is_some() {}
        }
    };
    let find = |second| Moment::Time(second).resolve(&host, false);
    wrong(20_000_000_000, 95);
    assert_eq!(find(1_000 + 30).unwrap(), 30);
    assert_eq!(find(20_000_000_000 + 70).unwrap(), 70);
    // A clock that is right again, or at the beginning of time.
    host.make_checkpoints(130);
    wrong(0, 160);
    for n in 1..=60 {
        assert_eq!(find(1_000 + n).unwrap(), n);
    }
    assert_eq!(find(20_000_000_000 + 70).unwrap(), 70);
}

#[test]
fn a_moment_is_found_by_time_whatever_was_removed() {
    let host = MemoryHost::new();
    host.make_checkpoints(700);
    for (start, end) in [(2, 30), (99, 99), (101, 101), (200, 520), (640, 699)] {
        host.ask(ROOT, Request::RemoveCheckpoints { start, end }).unwrap();
    }
    let all = host.list(all());
    for time in 990..1_720 {
        let found = host.ask(ROOT, Request::FindMoment { at: Moment::Time(time), snapshot_only: false });
        let expected = all.iter().rfind(|c| c.created <= time).map(|c| Response::Checkpoint(c.number));
        assert_eq!(found.ok().and_then(|mut parts| parts.pop()), expected, "{time}");
    }
}

#[test]
fn changes_are_durable_when_they_are_answered() {
    let host = MemoryHost::new();
    host.make_checkpoints(9);
    let syncs = || host.syncs.swap(0, Ordering::Relaxed);
    syncs();
    assert_eq!(
        host.ask(ROOT, Request::MakeCheckpoint { snapshot: true }).unwrap(),
        [Response::Checkpoint(9)]
    );
    assert_eq!(syncs(), 2);
    let parts =
        host.ask(ROOT, Request::ChangeMode { checkpoints: vec![3, 4711, 5], snapshot: true }).unwrap();
    assert!(
        matches!(&parts[..], [Response::Refused { number: 4711, error }] if error.kind == Kind::NotFound)
    );
    assert_eq!(syncs(), 1);
    assert!(!host.volume.lock().unwrap().has_changes());
    // What changes nothing costs nothing.
    host.ask(ROOT, Request::ChangeMode { checkpoints: vec![3, 5], snapshot: true }).unwrap();
    host.ask(ROOT, Request::RemoveCheckpoints { start: 100, end: 200 }).unwrap();
    assert_eq!(syncs(), 0);

    let parts = host.ask(ROOT, Request::RemoveCheckpoints { start: 1, end: 6 }).unwrap();
    let r = removed(&parts);
    assert_eq!((r.removed, &r.snapshots[..], r.snapshots_total), (4, &[3, 5][..], 2));
    assert_eq!(syncs(), 1);
    let newest = host.list(all()).last().unwrap().number;
    let parts = host.ask(ROOT, Request::RemoveCheckpoints { start: 0, end: u64::MAX }).unwrap();
    assert!(removed(&parts).removed > 0 && removed(&parts).busy.is_empty(), "{parts:?}");
    assert!(numbers(&host, all()).contains(&newest), "an open range stops before it");
    let newest = host.list(all()).last().unwrap().number;
    let request = Request::RemoveCheckpoints { start: newest, end: newest };
    assert_eq!(removed(&host.ask(ROOT, request).unwrap()).removed, 1);
    assert_eq!(host.list(all()).last().unwrap().number, newest + 1, "its successor is there");
    assert!(matches!(host.ask(ROOT, Request::Status).unwrap()[..], [Response::Status(_)]));
    let e = host.ask(ROOT, Request::RemoveCheckpoints { start: 7, end: 6 }).unwrap_err();
    assert_eq!(e.kind, Kind::Invalid);
}

#[test]
fn a_snapshot_that_is_looked_at_is_told_as_one_that_stays() {
    let host = MemoryHost::new();
    host.make_checkpoints(9);
    host.ask(ROOT, Request::ChangeMode { checkpoints: vec![3, 5], snapshot: true }).unwrap();
    for viewed in [3, 7] {
        host.volume.lock().unwrap().open_view(silt_format::Cno(viewed)).unwrap();
    }
    let parts = host.ask(ROOT, Request::RemoveCheckpoints { start: 3, end: 3 }).unwrap();
    assert_eq!(removed(&parts), &Removed { snapshots: vec![3], snapshots_total: 1, ..Removed::default() });
    let parts = host.ask(ROOT, Request::RemoveCheckpoints { start: 2, end: 8 }).unwrap();
    let r = removed(&parts);
    assert_eq!((r.removed, &r.snapshots[..], &r.busy[..]), (4, &[3, 5][..], &[7][..]));
}

#[test]
fn nothing_is_made_of_what_is_read_only() {
    let host = MemoryHost::new();
    host.make_checkpoints(2);
    let options = silt_engine::OpenOptions { read_only: true, ..Default::default() };
    *host.volume.lock().unwrap() = silt_engine::Volume::open(Host::device(&host), &options).unwrap().0;
    let e = host.ask(ROOT, Request::MakeCheckpoint { snapshot: false }).unwrap_err();
    assert_eq!(e.kind, Kind::ReadOnly);
}

#[test]
fn a_checkpoint_under_way_is_waited_for() {
    let host = MemoryHost::new();
    host.make_checkpoints(5);
    {
        let mut v = host.volume.lock().unwrap();
        v.make_snapshot(silt_format::Cno(2)).unwrap();
        assert!(v.begin_checkpoint(2_000).unwrap());
        assert!(matches!(v.make_snapshot(silt_format::Cno(3)), Err(silt_engine::Error::Constructing)));
    }
    host.ask(ROOT, Request::ChangeMode { checkpoints: vec![3], snapshot: true }).unwrap();
    let snapshots = CheckpointQuery { snapshots_only: true, ..CheckpointQuery::default() };
    assert_eq!(numbers(&host, snapshots), [2, 3]);
}

#[test]
fn segments_are_listed_and_dumped() {
    let host = MemoryHost::new();
    host.make_checkpoints(200);
    let list = |query| {
        let parts = host.ask(ROOT, Request::ListSegments(query)).unwrap();
        parts
            .into_iter()
            .flat_map(|p| match p {
                Response::Segments(batch) => batch,
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    let used = list(SegmentQuery::default());
    assert!(used.len() > 3 && used.iter().all(|s| s.dirty), "{used:?}");
    assert_eq!(used.iter().filter(|s| s.active).count(), 2);
    let every = list(SegmentQuery { all: true, ..SegmentQuery::default() });
    assert_eq!(every.len() as u64, host.volume.lock().unwrap().geometry().nsegments);
    assert_eq!(list(SegmentQuery { all: true, from: 3, count: Some(2), live: None })[1].number, 4);
    assert!(list(SegmentQuery { from: u64::MAX, count: Some(u64::MAX), all: true, live: None }).is_empty());

    let parts = host.ask(OWNER, Request::DumpSegments { segments: vec![0, 1, u64::MAX] }).unwrap();
    let mut blocks = 0;
    for part in &parts {
        match part {
            Response::Dump(items) => {
                assert!(items.len() <= 1000);
                blocks += items.iter().filter(|i| matches!(i, silt_control::DumpItem::Block { .. })).count();
            }
            Response::Refused { number, error } => {
                assert_eq!((*number, error.kind), (u64::MAX, Kind::NotFound));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(blocks > 200, "{blocks}");
    let e = host.ask(ROOT, Request::DumpSegments { segments: vec![0; 5000] }).unwrap_err();
    assert_eq!(e.kind, Kind::Invalid);
}

#[test]
fn settings_are_changed_on_a_volume_in_use() {
    let host = MemoryHost::new();
    let tune = Tune {
        label: Some("new".into()),
        uuid: Some("c1b9d5a2-f162-11cf-9ece-0020afc76f16".into()),
        interval: Some(9),
        block_max: None,
        block_count: Some(false),
    };
    let parts = host.ask(ROOT, Request::Tune(tune)).unwrap();
    let [Response::Settings(s)] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!((&s.label, s.interval, s.features.len()), (&"new".into(), 9, 0));
    let read = silt_engine::read_super_block(&*silt_control::Host::device(&host)).unwrap();
    assert_eq!((read.label(), read.c_interval.get()), (&b"new"[..], 9));
    let e = host.ask(ROOT, Request::Tune(Tune { uuid: Some("x".into()), ..Tune::default() })).unwrap_err();
    assert_eq!(e.kind, Kind::Invalid);
    let e = host.ask(ROOT, Request::Resize { size: Some(1 << 20) }).unwrap_err();
    assert_eq!(e.kind, Kind::NoSpace);
}

#[test]
fn a_status_adds_up() {
    let host = MemoryHost::new();
    host.make_checkpoints(100);
    let parts = host.ask(ROOT, Request::Status).unwrap();
    let [Response::Status(s)] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!(s.live + s.past + s.free, s.size);
    assert_eq!((s.checkpoints, s.newest_checkpoint, s.newest_checkpoint_time), (100, 100, 1_100));
    assert!(s.mounts.is_empty() && s.pid.is_none());
}

/// Every request, with whether it only looks.
fn every_request() -> Vec<(Request, bool)> {
    let moment = MomentMount {
        at: Moment::Checkpoint(1),
        snapshot_only: false,
        dir: "/past".into(),
        allow_other: None,
        exec: true,
        suid: false,
        dev: false,
    };
    vec![
        (Request::Status, true),
        (Request::ListCheckpoints(CheckpointQuery::default()), true),
        (Request::ListSegments(SegmentQuery::default()), true),
        (Request::DumpSegments { segments: vec![0] }, true),
        (Request::Sync, true),
        (Request::ShowSettings, true),
        (Request::FindMoment { at: Moment::Checkpoint(1), snapshot_only: false }, true),
        (Request::MakeCheckpoint { snapshot: false }, false),
        (Request::ChangeMode { checkpoints: vec![1], snapshot: true }, false),
        (Request::RemoveCheckpoints { start: 1, end: 1 }, false),
        (Request::Tune(Tune::default()), false),
        (Request::Resize { size: None }, false),
        (Request::MountMoment(moment), false),
        (Request::Unmount(UnmountWhat::Everything), false),
    ]
}

#[test]
fn who_may_what() {
    let host = MemoryHost::new();
    host.make_checkpoints(3);
    for allow_other in [false, true] {
        host.mount(allow_other);
        for (request, only_looks) in every_request() {
            assert_eq!(request.only_looks(), only_looks, "{request:?}");
            for caller in [ROOT, OWNER] {
                let result = host.ask(caller, request.clone());
                assert!(
                    !matches!(&result, Err(e) if e.kind == Kind::NotPermitted),
                    "{request:?}: {result:?}"
                );
            }
            let result = host.ask(OTHER, request.clone());
            let refused = matches!(&result, Err(e) if e.kind == Kind::NotPermitted);
            assert_eq!(refused, !(allow_other && only_looks), "{request:?}: {result:?}");
        }
    }
}

/// Who is let in sees that there is damage, and not in which file of a directory that is closed to him.
#[test]
fn names_are_for_root_and_who_mounted() {
    let host = MemoryHost::new();
    host.mount(true);
    let said = |caller, request| format!("{:?}", host.ask(caller, request));
    for request in [Request::Status, Request::ListDamage, Request::Scrub(ScrubAction::Status)] {
        for caller in [ROOT, OWNER] {
            assert!(said(caller, request.clone()).contains(SECRET), "{request:?}");
        }
        assert!(!said(OTHER, request.clone()).contains("secret"), "{}", said(OTHER, request.clone()));
    }
    let e = host.ask(OTHER, Request::ListDamage).unwrap_err();
    assert_eq!(e.kind, Kind::NotPermitted);
    let parts = host.ask(OTHER, Request::Status).unwrap();
    let [Response::Status(s)] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!((s.damaged, s.damaged_logs, s.lost.len()), (1, 1, 1));
    let parts = host.ask(OTHER, Request::Scrub(ScrubAction::Status)).unwrap();
    let [Response::Scrub(s)] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!(s.pass.as_ref().unwrap().findings[0].suspects[0].inode, 12);
    // Of one that is not mounted everybody sees what he can read.
    *host.mount.lock().unwrap() = None;
    assert!(said(OTHER, Request::Status).contains(SECRET));
}

#[test]
fn a_moment_is_mounted_with_what_the_caller_may_ask_for() {
    let host = MemoryHost::new();
    host.mount(false);
    let mount = MomentMount {
        at: Moment::Checkpoint(1),
        snapshot_only: false,
        dir: "/past".into(),
        allow_other: None,
        exec: true,
        suid: true,
        dev: false,
    };
    let ask = |caller, mount: &MomentMount| {
        host.ask(caller, Request::MountMoment(mount.clone())).map_err(|e| e.kind)
    };
    assert_eq!(ask(OWNER, &mount), Err(Kind::NotPermitted), "suid is root's");
    assert_eq!(ask(ROOT, &mount), Ok(vec![Response::Mounted("/past".into())]));
    let relative = MomentMount { dir: "past".into(), suid: false, ..mount.clone() };
    assert_eq!(ask(OWNER, &relative), Err(Kind::Invalid));
    let snapshot = MomentMount { snapshot_only: true, suid: false, ..mount };
    assert_eq!(ask(OWNER, &snapshot), Err(Kind::Invalid));
    assert_eq!(host.mounted.lock().unwrap().len(), 1);
}
