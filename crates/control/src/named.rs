//! Commands that errors tell to type, with the name that the volume was given.
//!
//! Whoever executes a request does not know how its volume was named: by an image, a device or a directory, from
//! somewhere else. In commands its errors say `VOLUME`, and whoever asked puts the name there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::connect::Control;
use crate::{ControlError, RemoteVolume, Request, Response, Result};

/// What lists moments.
pub(crate) const LISTS_MOMENTS: &str = "silt lscp VOLUME lists them";
/// What lists segments.
pub(crate) const LISTS_SEGMENTS: &str = "silt lssu -a VOLUME lists them";
/// What begins a scrub.
pub(crate) const BEGINS_SCRUB: &str = "silt scrub VOLUME";
/// What makes a checkpoint a snapshot; its number comes behind it.
pub(crate) const MAKES_SNAPSHOT: &str = "silt chcp ss VOLUME";

/// A volume under the name that it was found by.
pub(crate) struct Named {
    pub volume: Box<dyn Control>,
    pub name: PathBuf,
}

/// Puts the name into the command that an error tells to type.
fn naming(mut error: ControlError, name: &Path) -> ControlError {
    if let Some(hint) = &mut error.hint {
        let known = [LISTS_MOMENTS, LISTS_SEGMENTS, MAKES_SNAPSHOT, BEGINS_SCRUB];
        if let Some(command) = known.into_iter().find(|command| hint.contains(command)) {
            let named = command.replacen("VOLUME", &silt_names::quoted(name), 1);
            *hint = hint.replacen(command, &named, 1);
        }
    }
    error
}

impl Control for Named {
    fn call(&mut self, request: Request, out: &mut dyn FnMut(Response) -> Result<()>) -> Result<()> {
        let name = &self.name;
        let mut each = |part| match part {
            Response::Refused { number, error } => {
                out(Response::Refused { number, error: naming(error, name) })
            }
            part => out(part),
        };
        self.volume.call(request, &mut each).map_err(|e| naming(e, name))
    }

    fn answer_within(&mut self, time: Option<Duration>) {
        self.volume.answer_within(time);
    }

    fn is_mounted(&self) -> bool {
        self.volume.is_mounted()
    }

    fn into_remote(self: Box<Self>) -> Option<RemoteVolume> {
        self.volume.into_remote()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Kind;

    #[test]
    fn a_command_gets_the_name_and_the_rest_stays() {
        let of = |hint: &str| {
            naming(ControlError::new(Kind::NotFound, "VOLUME").hint(hint), Path::new("a VOLUME"))
                .hint
                .unwrap()
        };
        assert_eq!(of(LISTS_MOMENTS), "silt lscp 'a VOLUME' lists them");
        assert_eq!(of(LISTS_SEGMENTS), "silt lssu -a 'a VOLUME' lists them");
        let more = format!("use at=7, or make it one with: {MAKES_SNAPSHOT} 7");
        assert_eq!(of(&more), "use at=7, or make it one with: silt chcp ss 'a VOLUME' 7");
        assert_eq!(of("try VOLUME"), "try VOLUME");
        assert_eq!(naming(ControlError::new(Kind::Busy, "no"), Path::new("v")).hint, None);
    }
}
