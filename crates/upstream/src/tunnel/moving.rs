//! A tunnel that moves to another loop of the process when its own is stalled, and comes back to end.
//!
//! While nothing is in flight, the tunnel is a value: two sockets, the states of their TLS, and
//! counters. Its request stays with its first loop, with all that is logged at its end. So does a
//! task that waits for the sockets to come back.

use std::any::Any;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use weir_engine::{Handle, Joined, Lent, Stream};
use weir_tls::{Secured, Wire};

use super::{Broke, PassedBytes, TunnelEnd, Ways, pass, run};

/// As [`run`]; other loops of the process may go on with it meanwhile, each of which holds what `arrive` gives. None if such a loop
/// has ended before it.
pub async fn run_movable(
    handle: &Handle,
    client: &Wire,
    server: &Wire,
    ways: Ways,
    passed: &Arc<PassedBytes>,
    arrive: fn() -> Box<dyn Any>,
) -> Option<Result<TunnelEnd, Broke>> {
    if !handle.has_steal_group() {
        return Some(run(handle, client, server, ways, passed, || {}).await);
    }
    let letter = Arc::new(Letter::default());
    let (passed, home) = (Arc::clone(passed), Home(Arc::clone(&letter)));
    let moving = Moving { client: None, server: None, ways, passed, arrive, home };
    if let (Some(ended), _) = moving.pass(handle, client, server).await {
        return Some(ended);
    }
    let wires = [client, server];
    wires.iter().for_each(|wire| wire.set_deadline(None));
    let Returned { ended, sockets } = letter.come().await?;
    for (wire, (fd, secured)) in wires.into_iter().zip(sockets) {
        // If it fails, there is nothing left to be said to that end.
        if wire.socket().come_back(fd).is_ok() {
            wire.take_back(secured);
        }
    }
    Some(ended)
}

/// A tunnel for the loop that takes it.
struct Moving {
    client: Option<Secured>,
    server: Option<Secured>,
    ways: Ways,
    passed: Arc<PassedBytes>,
    arrive: fn() -> Box<dyn Any>,
    home: Home,
}

impl Moving {
    /// Passes bytes to the end; none if it goes on elsewhere. It comes back unless it does.
    async fn pass(
        self,
        handle: &Handle,
        client: &Wire,
        server: &Wire,
    ) -> (Option<Result<TunnelEnd, Broke>>, Option<Box<Moving>>) {
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

/// A tunnel that is offered to other loops, or may be.
pub(super) struct Offering<'w> {
    client: &'w Wire,
    server: &'w Wire,
    /// It is here while it is not offered.
    here: Option<Box<Moving>>,
    lent: Option<Lent<'w>>,
}

impl Offering<'_> {
    /// Nothing is on its way, as far as is known above TLS.
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

    /// The tunnel goes on here; false if it does so elsewhere.
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

/// Where a tunnel began. Dropped before it has ended, it says that, too.
struct Home(Arc<Letter>);

impl Home {
    fn send(self, ended: Result<TunnelEnd, Broke>, wires: [Wire; 2]) {
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

impl Drop for Home {
    fn drop(&mut self) {
        self.0.write(|content| content.is_over = true);
    }
}

/// How it ended, and its sockets, the client's first.
struct Returned {
    ended: Result<TunnelEnd, Broke>,
    sockets: [(OwnedFd, Option<Secured>); 2],
}

/// What the first loop waits for.
#[derive(Default)]
struct Letter(Mutex<PipeContent>);

#[derive(Default)]
struct PipeContent {
    returned: Option<Returned>,
    /// Nothing more will be written.
    is_over: bool,
    reader: Option<Waker>,
}

impl Letter {
    fn write(&self, write: impl FnOnce(&mut PipeContent)) {
        let mut content = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        write(&mut content);
        let reader = content.reader.take();
        drop(content);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    async fn come(&self) -> Option<Returned> {
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
