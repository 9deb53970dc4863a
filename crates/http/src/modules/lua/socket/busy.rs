//! The operations of a socket that coroutines have begun. Each kind has one at a time.

use std::cell::Cell;

use super::{Socket, SocketError};

/// What coroutines do with a socket at the moment.
#[derive(Default)]
pub(super) struct UnderWay {
    /// A connect or a TLS handshake. Nothing else goes on beside it.
    pub(super) connecting: Cell<bool>,
    pub(super) receiving: Cell<bool>,
    pub(super) sending: Cell<bool>,
}

impl UnderWay {
    /// Begins a connect or a handshake, which goes on beside no other operation.
    pub(super) fn connect(&self) -> Result<Busy<'_>, SocketError> {
        match self.doing() {
            Some(doing) => Err(SocketError::Busy(doing)),
            None => Busy::new(&self.connecting, "connecting"),
        }
    }

    /// Begins a receive.
    pub(super) fn receive(&self) -> Result<Busy<'_>, SocketError> {
        self.begin(&self.receiving, "reading")
    }

    /// Begins a send.
    pub(super) fn send(&self) -> Result<Busy<'_>, SocketError> {
        self.begin(&self.sending, "writing")
    }

    fn begin<'a>(
        &self,
        place: &'a Cell<bool>,
        doing: &'static str,
    ) -> Result<Busy<'a>, SocketError> {
        if self.connecting.get() {
            return Err(SocketError::Busy("connecting"));
        }
        Busy::new(place, doing)
    }

    fn doing(&self) -> Option<&'static str> {
        let all = [
            (&self.connecting, "connecting"),
            (&self.receiving, "reading"),
            (&self.sending, "writing"),
        ];
        all.iter().find(|(place, _)| place.get()).map(|(_, doing)| *doing)
    }
}

/// Marks an operation as begun, until this is dropped.
pub(super) struct Busy<'a>(&'a Cell<bool>);

impl<'a> Busy<'a> {
    /// An error if another coroutine has begun one of this kind.
    pub(super) fn new(place: &'a Cell<bool>, doing: &'static str) -> Result<Busy<'a>, SocketError> {
        if place.replace(true) {
            return Err(SocketError::Busy(doing));
        }
        Ok(Busy(place))
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Socket {
    /// The error if a coroutine connects, sends or receives.
    pub fn refusal(&self) -> Option<SocketError> {
        self.under_way.doing().map(SocketError::Busy)
    }
}
