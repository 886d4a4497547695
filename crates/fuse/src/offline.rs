//! Requests without a kernel, for tests that send whatever bytes they like.

use crate::channel::Channel;
use crate::dispatch::Target;
use crate::filesystem::Filesystem;
use crate::reply::Way;
use crate::request::Request;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// Serves requests that come as bytes. Answers are written to a descriptor, one a write.
pub struct Offline<F> {
    target: Target<F>,
    channel: Arc<Channel>,
}

impl<F: Filesystem> Offline<F> {
    /// `fs` is asked, `answers` gets what it says.
    pub fn new(fs: Arc<F>, answers: OwnedFd) -> Self {
        Self { target: Target::new(fs), channel: Arc::new(Channel::new(answers)) }
    }

    /// Serves one request as it would be read from the device.
    pub fn serve(&self, request: &[u8]) {
        self.target.dispatch(Way::Device(self.channel.clone()), Request::parse(request));
    }

    /// The same of a request that a ring would bring in parts. The answer goes to the descriptor as well.
    pub fn serve_parts(&self, header: &[u8], arguments: &[u8], payload: &[u8]) {
        let request = Request::parse_parts(header, arguments, payload);
        self.target.dispatch(Way::Device(self.channel.clone()), request);
    }
}
