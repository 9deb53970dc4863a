//! UDP sockets of scripts.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::{SocketAddrAny, SocketAddrUnix};
use weir_engine::{ConnectOptions, Datagram, Handle};

use super::busy::Busy;
use super::{OwnedSocket, SocketError, SocketOwner, SocketTarget, address, within};
use crate::event_loop::LoopState;
use crate::modules::core;

/// The longest datagram.
const LONGEST: usize = 65_536;

/// A UDP socket of a script.
pub struct UdpSocket {
    owner: SocketOwner,
    datagram: RefCell<Option<Rc<Datagram>>>,
    /// The local address to bind to.
    local: Cell<Option<IpAddr>>,
    /// The peer, for log lines.
    peer: RefCell<Rc<str>>,
    /// The timeout of a receive.
    timeout: Cell<Duration>,
    /// Whether a coroutine connects, sends or receives.
    busy: Cell<bool>,
}

impl UdpSocket {
    /// A socket without a peer.
    pub fn new(timeout: Duration) -> UdpSocket {
        UdpSocket {
            owner: SocketOwner::default(),
            datagram: RefCell::default(),
            local: Cell::default(),
            peer: RefCell::default(),
            timeout: Cell::new(timeout),
            busy: Cell::default(),
        }
    }

    /// Replaces the configuration's timeout.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    /// Sets the local address for later `connect` calls.
    pub fn bind(&self, local: IpAddr) {
        self.local.set(Some(local));
    }

    /// Connects to a peer, the only one to send to and receive from.
    pub async fn connect(
        &self,
        event_loop: &Rc<LoopState>,
        core: &'static core::Conf,
        server: SocketTarget,
    ) -> Result<(), SocketError> {
        let _busy = Busy::new(&self.busy, "")?;
        self.datagram.take();
        let to = address(event_loop, core, &server).await?;
        self.peer.replace(server.in_log(&to));
        let bind = match &server {
            // An autobound address, so that the server can answer.
            SocketTarget::Unix(_) => Some(SocketAddrAny::from(SocketAddrUnix::new_unnamed())),
            SocketTarget::Host(..) => self.local.get().map(|ip| SocketAddr::new(ip, 0).into()),
        };
        let how = ConnectOptions { bind, ..ConnectOptions::default() };
        let datagram = event_loop.handle.connect_datagrams(&to, &how)?;
        *self.datagram.borrow_mut() = Some(Rc::new(datagram));
        Ok(())
    }

    /// Sends one datagram.
    pub async fn send(&self, handle: &Handle, bytes: &[u8]) -> Result<(), SocketError> {
        let datagram = self.datagram()?;
        let _busy = Busy::new(&self.busy, "")?;
        let sending = async { datagram.send_to(bytes, None).await.map_err(SocketError::from) };
        within(handle, self.timeout.get(), sending).await.map(|_| ())
    }

    /// Receives a datagram, cut to `most` bytes.
    pub async fn receive(
        &self,
        handle: &Handle,
        most: Option<usize>,
    ) -> Result<Vec<u8>, SocketError> {
        let datagram = self.datagram()?;
        let _busy = Busy::new(&self.busy, "")?;
        let receiving = async {
            loop {
                std::future::poll_fn(|cx| datagram.poll_readable(cx)).await?;
                // The buffer is allocated once a datagram is there. It must not be empty.
                let most = most.unwrap_or(LONGEST).min(LONGEST);
                let mut bytes = Vec::with_capacity(most.max(1));
                if datagram.try_recv(&mut bytes)?.is_some() {
                    bytes.truncate(most);
                    return Ok(bytes);
                }
            }
        };
        within(handle, self.timeout.get(), receiving).await
    }

    /// The peer, for log lines.
    pub fn peer(&self) -> Rc<str> {
        self.peer.borrow().clone()
    }

    /// Whether it has a peer.
    pub fn is_open(&self) -> bool {
        self.datagram.borrow().is_some()
    }

    /// Closes the socket. An error if a coroutine uses it, or if it has no peer.
    pub fn close(&self) -> Result<(), SocketError> {
        self.datagram()?;
        let _busy = Busy::new(&self.busy, "")?;
        self.datagram.take();
        Ok(())
    }

    fn datagram(&self) -> Result<Rc<Datagram>, SocketError> {
        self.datagram.borrow().clone().ok_or(SocketError::Closed)
    }
}

impl OwnedSocket for UdpSocket {
    fn owner(&self) -> &SocketOwner {
        &self.owner
    }

    fn close_with_owner(&self) {
        self.datagram.take();
    }
}
