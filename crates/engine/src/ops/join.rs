//! Two connections that another loop steals together, and how they come back.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use weir_sys::descriptor::replace;

use crate::ready::Ready;
use crate::source::Fd;
use crate::{Joined, Stream};

impl Stream {
    /// Makes this connection and `other` stealable together, as `joined`
    /// ([`crate::Options::steal_group`]). A task must wait for both. Returns `joined` if no other
    /// loop could steal them.
    pub fn offer_with<'a>(
        &'a self,
        other: &Stream,
        joined: Box<dyn Joined>,
    ) -> Result<Lent<'a>, Box<dyn Joined>> {
        let (first, second) = (&self.0.source, &other.0.source);
        let (Some(member), Fd::Shared(fd), Fd::Shared(with)) =
            (&self.0.h.0.steal_group, &first.fd, &second.fd)
        else {
            return Err(joined);
        };
        // The second socket may come from another loop's pool, and may still be registered there.
        if !second.offered.get() && Arc::strong_count(with) > 1 {
            return Err(joined);
        }
        first.offered.set(true);
        second.offered.set(true);
        member.stealable().put_joined([(first.token, fd), (second.token, with)], joined);
        Ok(Lent(self))
    }

    /// Puts back a socket that another loop had stolen.
    pub fn come_back(&self, fd: OwnedFd) -> io::Result<()> {
        let source = &self.0.source;
        replace(source.fd.as_fd(), fd)?;
        source.reported.set(false);
        source.reports_room.set(false);
        source.ready.set(Ready::READ.and(Ready::WRITE));
        Ok(())
    }
}

/// Two streams that are stealable until this is withdrawn or dropped.
#[must_use = "it is withdrawn when it is dropped"]
pub struct Lent<'a>(&'a Stream);

impl Lent<'_> {
    /// Ends the offer. None if another loop has stolen the connections. The streams are then
    /// unusable until they [come back](Stream::come_back).
    pub fn withdraw(self) -> Option<Box<dyn Joined>> {
        self.take()
    }

    fn take(&self) -> Option<Box<dyn Joined>> {
        let registered = &self.0.0;
        let member = registered.h.0.steal_group.as_ref()?;
        member.stealable().withdraw_joined(registered.source.token)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
