//! Data-sync logs behind the super root: the check lists them, the reader applies them.

use silt_format::summary::{LOGBGN, LOGEND, SYNDT};

use crate::surgeon::Surgeon;
use crate::{Moment, Options, Tree, check};

const WHOLE: u16 = LOGBGN | SYNDT | LOGEND;

fn first_byte(s: &Surgeon, path: &str, block: u64) -> u8 {
    let tree = Tree::open(&s.device, Moment::Latest).unwrap();
    let ino = tree.lookup(path.as_bytes()).unwrap();
    let mut byte = [0];
    assert_eq!(tree.read_at(ino, block * 4096, &mut byte).unwrap(), 1);
    byte[0]
}

#[test]
fn whole_sequences_apply_in_order_and_open_ones_do_not() {
    let mut s = Surgeon::golden("cut-4k");
    let (a, b) = (s.ino("a0"), s.ino("a1"));
    let before = first_byte(&s, "a1", 2);
    let mut at = s.latest().end();
    at = s.append_log(at, WHOLE, &[(a, 0, vec![b'1']), (b, 0, vec![b'2'])]);
    // One sequence of two logs, over what the first wrote.
    at = s.append_log(at, LOGBGN | SYNDT, &[(a, 0, vec![b'3'])]);
    at = s.append_log(at, LOGEND | SYNDT, &[(a, 1, vec![b'4'])]);
    // One that the power cut ended.
    s.append_log(at, LOGBGN | SYNDT, &[(b, 2, vec![b'5'])]);
    let report = check(&s.device, &Options::default());
    assert!(report.is_clean(), "{}", report.error_text());
    assert_eq!((report.stats.pending_logs, report.stats.pending_blocks), (3, 4));
    assert_eq!(first_byte(&s, "a0", 0), b'3');
    assert_eq!(first_byte(&s, "a0", 1), b'4');
    assert_eq!(first_byte(&s, "a1", 0), b'2');
    assert_eq!(first_byte(&s, "a1", 2), before);
}

#[test]
fn a_torn_log_ends_the_trail() {
    let mut s = Surgeon::golden("cut-4k");
    let a = s.ino("a0");
    let before = first_byte(&s, "a0", 1);
    let at = s.latest().end();
    let next = s.append_log(at, WHOLE, &[(a, 0, vec![b'1'])]);
    let end = s.append_log(next, WHOLE, &[(a, 1, vec![b'2'])]);
    s.append_log(end, WHOLE, &[(a, 2, vec![b'3'])]);
    s.patch_with(next + 1, crate::surgeon::Sums::None, |b| b[9] = 1);
    assert_eq!(check(&s.device, &Options::default()).stats.pending_logs, 1);
    assert_eq!(first_byte(&s, "a0", 0), b'1');
    assert_eq!(first_byte(&s, "a0", 1), before);
}

#[test]
fn a_sequence_nobody_could_replay_is_refused() {
    let mut s = Surgeon::golden("cut-4k");
    let at = s.latest().end();
    s.append_log(at, WHOLE, &[(9999, 0, vec![1])]);
    assert!(Tree::open(&s.device, Moment::Latest).is_err());
    let cno = s.cno();
    assert!(Tree::open(&s.device, Moment::Checkpoint(cno)).is_ok());
}
