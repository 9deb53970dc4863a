//! Datagrams of scripts.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::{SocketAddrAny, SocketAddrUnix};
use weir_engine::{ConnectOptions, Datagram, Handle};

use super::{Busy, CloseWithRequest, SocketError, SocketTarget, address, within};
use crate::event_loop::LoopState;
use crate::modules::core;

/// The longest datagram.
const LONGEST: usize = 65_536;

/// A script's socket for datagrams.
pub struct UdpSocket {
    datagram: RefCell<Option<Rc<Datagram>>>,
    /// The address that it sends from.
    local: Cell<Option<IpAddr>>,
    /// Its peer, as lines of the log name it.
    peer: RefCell<Rc<str>>,
    /// For receiving.
    timeout: Cell<Duration>,
    /// A coroutine sets the peer, sends or receives.
    busy: Cell<bool>,
}

impl UdpSocket {
    /// One without a peer.
    pub fn new(timeout: Duration) -> UdpSocket {
        UdpSocket {
            datagram: RefCell::default(),
            local: Cell::default(),
            peer: RefCell::default(),
            timeout: Cell::new(timeout),
            busy: Cell::default(),
        }
    }

    /// Another time than the configuration's for receiving.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    /// The address to send from, once a peer is set.
    pub fn bind(&self, local: IpAddr) {
        self.local.set(Some(local));
    }

    /// Sets the only address to send to and to receive from.
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
            // The kernel gives it a name of its own, to which the server can answer.
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

    /// Receives one datagram, or as much of its beginning as is wanted.
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
                // Memory is taken only once a datagram is there. To receive into none is not possible.
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

    /// What a line of the log says of its peer.
    pub fn peer(&self) -> Rc<str> {
        self.peer.borrow().clone()
    }

    /// Whether it has a peer.
    pub fn is_open(&self) -> bool {
        self.datagram.borrow().is_some()
    }

    /// Ends it; an error if a coroutine uses it, or if it has no peer.
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

impl CloseWithRequest for UdpSocket {
    fn close_with_request(&self) {
        self.datagram.take();
    }
}
