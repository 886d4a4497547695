//! Files that lost a name while the device did not give their inodes. They are gone, as was asked; the link they had for it is
//! taken from them when the device tells what they are.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use silt_engine::Tree;

use crate::Fs;
use crate::dirs::Found;
use crate::error::{Of, Result};
use crate::names::check_type;

/// Files that are remembered.
const MOST: usize = 4096;
/// Files that are looked at again at a time, and for how long none is where the device still does not give one: so many times
/// what it took to find out.
const LOOKS: usize = 64;
const PAUSE: Duration = Duration::from_secs(1);
const REST: u32 = 20;

/// Those files, the one that is looked at next first.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    files: VecDeque<Found>,
    /// When the next look is due.
    again: Option<Instant>,
}

impl Unread {
    /// Remembers one; `false` if there are too many.
    pub fn note(&mut self, found: &Found) -> bool {
        let there_is_room = self.files.len() < MOST;
        if there_is_room {
            self.files.push_back(*found);
        }
        there_is_room
    }
}

impl Fs {
    /// Whether files lost a name that could not be read then.
    pub fn has_unread(&self) -> bool {
        !self.unread.files.is_empty()
    }

    /// Takes from files that could not be read when they lost a name the link they had for it, until one cannot be read yet;
    /// whether any has lost one.
    pub(crate) fn drop_late(&mut self) -> Result<bool> {
        let begin = Instant::now();
        if self.unread.again.is_some_and(|at| begin < at) {
            return Ok(false);
        }
        let mut any = false;
        for _ in 0..LOOKS {
            if self.volume.check_change(true, 0).is_err() {
                break;
            }
            let Some(found) = self.unread.files.pop_front() else { break };
            match self.attr(Tree::Live, found.ino) {
                Ok(attr) if check_type(&found, attr.mode).is_ok() && attr.links > 0 => {
                    let attr = self.volume.attr_mut(found.ino).of(found.ino)?;
                    attr.links = attr.links.saturating_sub(1);
                    any = true;
                    if attr.links == 0 {
                        self.reap_or_put_off(found.ino)?;
                    }
                }
                Err(e) if e.is_of_device() => {
                    self.unread.files.push_back(found);
                    // It may take long to fail, and others wait.
                    let pause = PAUSE.max(begin.elapsed().saturating_mul(REST));
                    self.unread.again = Instant::now().checked_add(pause);
                    break;
                }
                // It is gone, or what is there makes no sense: its blocks stay taken.
                _ => self.drop_damaged(found.ino, 1),
            }
        }
        Ok(any)
    }
}
