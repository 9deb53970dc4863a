//! A tunnel that moves to another loop of the process when its own loop is stalled.
//!
//! While no data are in flight, a tunnel consists of two sockets, their TLS states and counters,
//! which can move. Its request stays with the first loop, with all that is logged at the end. A
//! task there waits until the sockets come back.

use std::any::Any;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use weir_engine::{Handle, Joined, Lent, Stream};
use weir_tls::{Secured, Wire};

use super::{PassedBytes, TunnelEnd, TunnelError, TunnelOptions, pass, run};

/// As [`run`], but other loops of the process may take the tunnel. Such a loop holds the value of
/// `arrive` while it has the tunnel. None if that loop ended before the tunnel.
pub async fn run_movable(
    handle: &Handle,
    client: &Wire,
    server: &Wire,
    ways: TunnelOptions,
    passed: &Arc<PassedBytes>,
    arrive: fn() -> Box<dyn Any>,
) -> Option<Result<TunnelEnd, TunnelError>> {
    if !handle.has_steal_group() {
        return Some(run(handle, client, server, ways, passed, || {}).await);
    }
    let slot = Arc::new(ReturnSlot::default());
    let (passed, home) = (Arc::clone(passed), ReturnSender(Arc::clone(&slot)));
    let moving = Moving { client: None, server: None, ways, passed, arrive, home };
    if let (Some(ended), _) = moving.pass(handle, client, server).await {
        return Some(ended);
    }
    let wires = [client, server];
    wires.iter().for_each(|wire| wire.set_deadline(None));
    let Returned { ended, sockets } = slot.wait().await?;
    for (wire, (fd, secured)) in wires.into_iter().zip(sockets) {
        // If it fails, the socket is lost and nothing can be sent to that end.
        if wire.socket().come_back(fd).is_ok() {
            wire.take_back(secured);
        }
    }
    Some(ended)
}

/// A tunnel on its way to the loop that takes it.
struct Moving {
    client: Option<Secured>,
    server: Option<Secured>,
    ways: TunnelOptions,
    passed: Arc<PassedBytes>,
    arrive: fn() -> Box<dyn Any>,
    home: ReturnSender,
}

impl Moving {
    /// Passes bytes to the end. Returns how the tunnel ended, and itself. Both are none if another
    /// loop has taken it.
    async fn pass(
        self,
        handle: &Handle,
        client: &Wire,
        server: &Wire,
    ) -> (Option<Result<TunnelEnd, TunnelError>>, Option<Box<Moving>>) {
        let (ways, passed) = (self.ways, Arc::clone(&self.passed));
        let mut offering = Offering { client, server, here: Some(Box::new(self)), lent: None };
        let ended = pass(handle, client, server, ways, &passed, || {}, Some(&mut offering)).await;
        (ended, offering.here)
    }
}

impl Joined for Moving {
    fn go_on(mut self: Box<Self>, h: &Handle, [client, server]: [Stream; 2]) {
        let handle = h.clone();
        let client = Wire::join(client, self.client.take());
        let server = Wire::join(server, self.server.take());
        h.spawn(async move {
            let _guest = (self.arrive)();
            if let (Some(ended), Some(moving)) = self.pass(&handle, &client, &server).await {
                moving.home.send(ended, [client, server]);
            }
        });
    }
}

/// A tunnel that can be offered to other loops.
pub(super) struct Offering<'w> {
    client: &'w Wire,
    server: &'w Wire,
    /// Present while the tunnel is not offered.
    here: Option<Box<Moving>>,
    lent: Option<Lent<'w>>,
}

impl Offering<'_> {
    /// Offers the tunnel, if TLS has no data in flight either.
    pub(super) fn offer(&mut self) {
        let Some(mut moving) = self.here.take() else { return };
        if let Some(client) = self.client.lend() {
            match self.server.lend() {
                None => self.client.take_back(client),
                Some(server) => {
                    (moving.client, moving.server) = (client, server);
                    match self.client.socket().offer_with(self.server.socket(), moving) {
                        Ok(lent) => self.lent = Some(lent),
                        Err(back) => _ = self.have(back),
                    }
                    return;
                }
            }
        }
        self.here = Some(moving);
    }

    /// Withdraws the offer. False if another loop has taken the tunnel.
    pub(super) fn withdraw(&mut self) -> bool {
        match self.lent.take() {
            None => true,
            Some(lent) => lent.withdraw().is_some_and(|joined| self.have(joined)),
        }
    }

    fn have(&mut self, joined: Box<dyn Joined>) -> bool {
        let joined: Box<dyn Any> = joined;
        let Ok(mut moving) = joined.downcast::<Moving>() else { return false };
        self.client.take_back(moving.client.take());
        self.server.take_back(moving.server.take());
        self.here = Some(moving);
        true
    }
}

/// Returns a tunnel to its first loop. If it is dropped without that, the first loop stops waiting.
struct ReturnSender(Arc<ReturnSlot>);

impl ReturnSender {
    fn send(self, ended: Result<TunnelEnd, TunnelError>, wires: [Wire; 2]) {
        let [client, server] = wires.map(|wire| {
            let (stream, secured) = wire.part();
            stream.into_fd().ok().map(|fd| (fd, secured))
        });
        let returned = client
            .zip(server)
            .map(|(client, server)| Returned { ended, sockets: [client, server] });
        self.0.write(|content| content.returned = returned);
    }
}

impl Drop for ReturnSender {
    fn drop(&mut self) {
        self.0.write(|content| content.is_over = true);
    }
}

/// How the tunnel ended, and its sockets, the client's first.
struct Returned {
    ended: Result<TunnelEnd, TunnelError>,
    sockets: [(OwnedFd, Option<Secured>); 2],
}

/// The slot through which the first loop gets its tunnel back.
#[derive(Default)]
struct ReturnSlot(Mutex<ReturnState>);

#[derive(Default)]
struct ReturnState {
    returned: Option<Returned>,
    /// Nothing more will be written.
    is_over: bool,
    reader: Option<Waker>,
}

impl ReturnSlot {
    fn write(&self, write: impl FnOnce(&mut ReturnState)) {
        let mut content = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        write(&mut content);
        let reader = content.reader.take();
        drop(content);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    async fn wait(&self) -> Option<Returned> {
        poll_fn(|cx| {
            let mut content = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if content.is_over {
                return Poll::Ready(content.returned.take());
            }
            content.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}
