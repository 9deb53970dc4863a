//! The readiness of a socket.

use rustix::event::epoll::EventFlags;

/// The known readiness of a socket, in the bits that poll and epoll share. `READ` and `WRITE` are
/// set until an operation finds the socket exhausted. The other bits are never cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready(u16);

impl Ready {
    pub(crate) const NONE: Ready = Ready(0);
    pub(crate) const READ: Ready = Ready(EventFlags::IN.bits() as u16);
    pub(crate) const WRITE: Ready = Ready(EventFlags::OUT.bits() as u16);
    /// The peer has closed its side.
    pub(crate) const RDHUP: Ready = Ready(EventFlags::RDHUP.bits() as u16);
    /// Both directions are closed.
    pub(crate) const HUP: Ready = Ready(EventFlags::HUP.bits() as u16);
    pub(crate) const ERR: Ready = Ready(EventFlags::ERR.bits() as u16);
    /// The peer has closed its side, or the connection has failed.
    pub(crate) const GONE: Ready = Self::RDHUP.and(Self::HUP).and(Self::ERR);
    /// A read does not block.
    pub(crate) const READABLE: Ready = Self::READ.and(Self::GONE);
    /// A write does not block.
    pub(crate) const WRITABLE: Ready = Self::WRITE.and(Self::HUP).and(Self::ERR);

    /// Takes the known bits out of the kernel's.
    #[inline]
    pub(crate) const fn from_bits(bits: u16) -> Ready {
        Ready(bits & Self::READABLE.and(Self::WRITE).0)
    }

    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    pub(crate) const fn and(self, other: Ready) -> Ready {
        Ready(self.0 | other.0)
    }

    #[inline]
    pub(crate) const fn any(self, of: Ready) -> bool {
        self.0 & of.0 != 0
    }

    pub(crate) const fn without(self, other: Ready) -> Ready {
        Ready(self.0 & !other.0)
    }
}
