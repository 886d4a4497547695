//! Where the space is.

use silt_cleaner::Moments;
use silt_retention::Ladder;

use super::Out;
use super::clean::Via;
use super::retain::effective;
use crate::account::{Account, Kept};
use crate::host::Host;
use crate::{ControlError, Kind, Response, Result};

/// Says how far something is, and whether to go on: not where nobody hears it any more.
pub(super) struct Told<'a, 'b> {
    pub out: &'a mut Out<'b>,
    pub gone: Option<ControlError>,
    last: u64,
}

impl<'a, 'b> Told<'a, 'b> {
    pub fn new(out: &'a mut Out<'b>) -> Self {
        Told { out, gone: None, last: 0 }
    }

    /// `part` from 0 to 1.
    pub fn tell(&mut self, part: f64) -> bool {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
        let done = (part.clamp(0.0, 1.0) * 1000.0) as u64;
        if done > self.last && self.gone.is_none() {
            self.last = done;
            self.gone = (self.out)(Response::Counting { done, total: 1000 }).err();
        }
        self.gone.is_none()
    }
}

/// The moments that are kept, and what they are kept by, in words.
pub(super) fn moments(host: &dyn Host) -> Result<(Moments, String, String)> {
    let e = effective(host);
    let moments = Moments::read(&Via(host), &Ladder::new(&e.wish, &e.floor), host.now())?;
    Ok((moments, e.wish.to_string(), e.floor.to_string()))
}

/// Counts; `tell` hears how far it is and says whether to go on. None where it was ended.
fn count(host: &dyn Host, tell: impl FnMut(f64) -> bool) -> Result<Option<Account>> {
    let (moments, wish, floor) = moments(host)?;
    let counted = silt_cleaner::account(&Via(host), moments, tell)?;
    Ok(counted.map(|a| Account::new(&a, wish, floor)))
}

/// Counts then and there.
pub fn account(host: &dyn Host, mut out: Out<'_>) -> Result<()> {
    let mut told = Told::new(&mut out);
    let counted = count(host, |part| told.tell(part))?;
    if let Some(e) = told.gone {
        return Err(e);
    }
    let none = || ControlError::new(Kind::Other, "the count was ended");
    out(Response::Account(Box::new(counted.ok_or_else(none)?)))
}

/// What is kept in the background, or else counted now.
pub fn kept(host: &dyn Host) -> Kept {
    if let Some(kept) = host.account() {
        return kept;
    }
    match count(host, |_| true) {
        Ok(account) => Kept { account, ..Kept::default() },
        Err(e) => Kept { problem: Some(e.message), ..Kept::default() },
    }
}
